"""The peer: a training loop as a careful person writes it by hand with DistributedDataParallel.

Started by the benchmarks with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set: `ddp.py TASK SOCKET NAME`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from pace import Pace
from tasks import TASKS
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel


def shares(samples: int, batch: int, rank: int, size: int) -> Iterator[Tensor]:
    """The ids of this rank's part of every batch, epoch after epoch."""
    epoch = 0
    while True:
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(epoch))
        for first in range(0, samples - batch + 1, batch):
            yield order[first + batch * rank // size : first + batch * (rank + 1) // size]
        epoch += 1


def main() -> None:
    """Train until nobody wants a further step."""
    name, path, system = sys.argv[1:]
    task = TASKS[name]
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    # Bucket views are the setting that matters; static_graph showed no difference beyond that of one start to another.
    model = DistributedDataParallel(task.model(), gradient_as_bucket_view=True)
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
