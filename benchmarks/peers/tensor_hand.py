"""The peer: tensor parallelism by hand, with torch's `parallelize_module`, as its tutorial teaches it.

Started by the benchmark with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set: `tensor_hand.py TASK SOCKET NAME`.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch
import torch.distributed as dist
from ddp import shares
from pace import Pace
from tensor_tasks import TASKS
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module


def styles(model: nn.Module, name: str) -> dict[str, Any]:
    """Which layer is cut how; the vocabulary only where it is large."""
    plan: dict[str, Any] = {}
    for number in range(len(model.blocks)):  # type: ignore[arg-type]
        layers = dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel())
        layers |= dict.fromkeys(("out", "down"), RowwiseParallel())  # type: ignore[arg-type]
        plan |= {f"blocks.{number}.{layer}": style for layer, style in layers.items()}
    if name == "words":
        plan["words"] = RowwiseParallel(input_layouts=Replicate())
        plan["head"] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)  # for `loss_parallel`
    return plan


def main() -> None:
    """Train until nobody wants a further step."""
    name, path, system = sys.argv[1:]
    task = TASKS[name]
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = task.model()
    parallelize_module(model, init_device_mesh("cpu", (size,)), styles(model, name))
    # Two optimizers' worth of parameters in groups of their own: one kernel takes slices, or whole tensors, not both.
    sliced = [one for one in model.parameters() if isinstance(one, DTensor)]
    whole = [one for one in model.parameters() if not isinstance(one, DTensor)]
    optimizer = task.optimizer([{"params": sliced}, {"params": whole}])
    x, y = task.data()
    pace = Pace(path, system, rank)
    for ids in shares(len(x), task.batch, 0, 1):  # every rank computes the whole batch, with its slices
        if pace.ended:
            break
        optimizer.zero_grad(set_to_none=True)
        with loss_parallel() if name == "words" else contextlib.nullcontext():
            task.loss(model(x.index_select(0, ids)), y.index_select(0, ids)).backward()
        optimizer.step()
        pace.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
