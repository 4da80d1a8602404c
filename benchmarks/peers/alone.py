"""Two processes that know nothing of each other: each trains a model of its own on half a batch, without any exchange.

What they do together is what two workers could do at most. Started like `ddp.py`: `alone.py TASK SOCKET NAME`.
"""

from __future__ import annotations

import os
import sys

import torch
from ddp import shares
from pace import Pace
from tasks import TASKS


def main() -> None:
    """Train until nobody wants a further step."""
    name, path, system = sys.argv[1:]
    task = TASKS[name]
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    model = task.model()
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


if __name__ == "__main__":
    main()
