"""The peer: a training loop as a careful person writes it by hand with FSDP2, each block a unit.

Started like `ddp.py`: `fsdp2.py TASK SOCKET NAME`.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from ddp import shares
from pace import Pace
from tasks import TASKS, Block
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    """Train until nobody wants a further step."""
    name, path, system = sys.argv[1:]
    task = TASKS[name]
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model, mesh = task.model(), init_device_mesh("cpu", (size,))
    for block in (module for module in model.modules() if isinstance(module, Block)):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = task.optimizer(model.parameters())
    x, y = task.data()
    pace = Pace(path, system, rank)
    for ids in shares(len(x), task.batch, rank, size):
        if pace.ended:
            break
        optimizer.zero_grad(set_to_none=True)
        loss = task.loss(model(x.index_select(0, ids)), y.index_select(0, ids))
        loss.backward()
        optimizer.step()
        pace.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
