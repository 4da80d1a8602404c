"""The peer on a GPU: a loop as a careful person writes it by hand, for speed.

Compiled as a whole, fused, in bf16, data resident on the GPU and gathered there; the loss is not read at all:
`gpu_hand.py TASK SOCKET NAME [graphs]`. With `graphs` the kernels of a step are replayed as CUDA graphs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from gpu_tasks import TASKS
from pace import Pace
from torch import Tensor, nn


def batches(samples: int, batch: int) -> Iterator[Tensor]:
    """The ids of every batch, epoch after epoch."""
    while True:
        order = torch.randperm(samples, device="cuda")
        for first in range(0, samples - batch + 1, batch):
            yield order[first : first + batch]


def main() -> None:
    """Train until nobody wants a further step."""
    name, path, system, *graphs = sys.argv[1:]
    task = TASKS[name]
    torch.manual_seed(0)
    model = task.model().cuda()
    if any(isinstance(module, nn.Conv2d) for module in model.modules()):
        model = model.to(memory_format=torch.channels_last)
    optimizer = task.optimizer(model.parameters())
    x, y = (tensor.cuda() for tensor in task.data())

    mode = "reduce-overhead" if graphs else None
    loss_of = torch.compile(lambda x, y: task.compute(model, task.augmented(x), y), mode=mode)
    pace = Pace(path, system, 0, settle=torch.cuda.synchronize)
    for ids in batches(len(x), task.batch):
        if pace.ended:
            break
        optimizer.zero_grad(set_to_none=True)
        torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(x[ids], y[ids])
        loss.backward()
        optimizer.step()
        pace.step()
    print(f"peak {torch.cuda.max_memory_allocated()} {torch.cuda.max_memory_reserved()}", flush=True)


if __name__ == "__main__":
    main()
