"""The peer: a pipeline as a careful person writes it by hand with `torch.distributed.pipelining`, 1F1B, two stages.

Started by the benchmarks with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set: `pipelining.py TASK SOCKET NAME`. The
first rank sends its targets nowhere: both ranks gather the same batch, as Cordée's do.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from ddp import shares
from pace import Pace
from tasks import TASKS, Gpt
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

MICROS = 4
FIRST_OF_SECOND = 3
"""The block with which the second stage begins."""


class First(nn.Module):
    """Embeddings and the first blocks."""

    def __init__(self, whole: Gpt) -> None:
        """Take them from the whole model."""
        super().__init__()
        self.letters, self.places, self.blocks = whole.letters, whole.places, whole.blocks[:FIRST_OF_SECOND]

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length) to (batch, length, width)."""
        y: Tensor = self.blocks(self.letters(x) + self.places.weight[: x.shape[1]])
        return y


def main() -> None:
    """Train until nobody wants a further step."""
    name, path, system = sys.argv[1:]
    task = TASKS[name]
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    whole = task.model()
    assert isinstance(whole, Gpt) and size == 2
    part = First(whole) if rank == 0 else nn.Sequential(whole.blocks[FIRST_OF_SECOND:], whole.head)
    optimizer = task.optimizer(part.parameters())
    x, y = task.data()
    stage = PipelineStage(part, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROS, loss_fn=task.loss)
    pace = Pace(path, system, rank)
    for ids in shares(len(x), task.batch, 0, 1):
        if pace.ended:
            break
        optimizer.zero_grad(set_to_none=True)
        if rank == 0:
            schedule.step(x.index_select(0, ids))
        else:
            losses: list[Tensor] = []
            schedule.step(target=y.index_select(0, ids), losses=losses)
        optimizer.step()
        pace.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
