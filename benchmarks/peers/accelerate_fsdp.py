"""The peer Accelerate with FSDP2, each block a unit, as its documentation writes it.

Started like `ddp.py`, with LOCAL_RANK set too: `accelerate_fsdp.py TASK SOCKET NAME`.
"""

from __future__ import annotations

import os
import sys

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from gathered import loader
from pace import Pace
from tasks import TASKS


def main() -> None:
    """Train until nobody wants a further step."""
    name, path, system = sys.argv[1:]
    task = TASKS[name]
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    os.environ["ACCELERATE_USE_FSDP"] = "true"
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=True,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
    )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    if str(accelerator.distributed_type) != "DistributedType.FSDP":
        sys.exit(f"Accelerate does not use FSDP here, but {accelerator.distributed_type}")
    torch.manual_seed(0)
    plain = task.model()
    model, optimizer, batches = accelerator.prepare(
        plain, task.optimizer(plain.parameters()), loader(task, accelerator.num_processes)
    )
    pace = Pace(path, system, accelerator.process_index)
    while not pace.ended:
        for x, y in batches:
            optimizer.zero_grad()
            accelerator.backward(task.loss(model(x), y))
            optimizer.step()
            pace.step()
            if pace.ended:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main()
