"""One of three processes on emulated hosts: with DistributedDataParallel by hand, or alone: `balance_loop.py ddp 12`.

The first word is `ddp` or `alone`, the second how many seconds it trains; it prints its samples per second. All three
begin to measure together: a slow host takes seconds longer to start, and the others would be measured without it.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from balance import BATCH, network


def main() -> None:
    """Train on an equal share of each batch; the first rank says when all end."""
    way, seconds = sys.argv[1], float(sys.argv[2])
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    model: nn.Module = network()
    dist.init_process_group("gloo")
    if way == "ddp":
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    count = BATCH * (rank + 1) // size - BATCH * rank // size
    x, y = torch.randn(count, 64), torch.randint(10, (count,))
    steps, began = -3, time.perf_counter()
    while True:
        if steps == 0:
            dist.barrier()
            began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        steps += 1
        over = torch.tensor(float(steps > 0 and time.perf_counter() - began > seconds))
        if way == "ddp" and steps % 4 == 0:
            dist.broadcast(over, 0)
        if over and (way == "alone" or steps % 4 == 0):
            break
    print(steps * count / (time.perf_counter() - began), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
