"""The peer Ray Train: a `TorchTrainer` with two workers, as its documentation writes it, with DDP's bucket views.

One process that starts a Ray of its own, with as little beside it as Ray lets one choose: `ray_loop.py TASK SOCKET NAME
FOLDER`. Its workers are other processes; they get the socket as a part of their configuration.
"""

from __future__ import annotations

import sys
from typing import Any

import ray
import torch
from gathered import loader
from pace import Pace
from ray.train import RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model
from tasks import TASKS

WORKERS = 2
OBJECT_STORE_BYTES = 80 * 2**20
"""About the least that Ray accepts; nothing goes through it here."""


def train(config: dict[str, Any]) -> None:
    """What every worker does: train until nobody wants a further step."""
    task = TASKS[config["task"]]
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    torch.manual_seed(0)
    model = prepare_model(task.model(), parallel_strategy_kwargs={"gradient_as_bucket_view": True})
    optimizer = task.optimizer(model.parameters())
    batches = prepare_data_loader(loader(task, get_context().get_world_size()))
    pace = Pace(config["socket"], config["system"], get_context().get_world_rank())
    epoch = 0
    while not pace.ended:
        batches.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        for x, y in batches:
            optimizer.zero_grad()
            loss = task.loss(model(x), y)
            loss.backward()
            optimizer.step()
            pace.step()
            if pace.ended:
                break
        epoch += 1


def main() -> None:
    """Start Ray, train, and take it down again."""
    name, path, system, folder = sys.argv[1:]
    ray.init(
        address="local",
        num_cpus=WORKERS,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        log_to_driver=False,
        _temp_dir=folder,
    )
    trainer = TorchTrainer(
        train,
        train_loop_config={"task": name, "socket": path, "system": system},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=WORKERS, use_gpu=False, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(name="overhead", storage_path=folder),
    )
    trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
