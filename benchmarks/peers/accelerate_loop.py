"""The peer Accelerate: its loop as its documentation writes it, with DDP's bucket views.

Started like `ddp.py`, with LOCAL_RANK set too: `accelerate_loop.py TASK SOCKET NAME`.
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from gathered import loader
from pace import Pace
from tasks import TASKS


def main() -> None:
    """Train until nobody wants a further step."""
    name, path, system = sys.argv[1:]
    task = TASKS[name]
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)])
    torch.manual_seed(0)
    plain = task.model()
    model, optimizer, batches = accelerator.prepare(
        plain, task.optimizer(plain.parameters()), loader(task, accelerator.num_processes)
    )
    pace = Pace(path, system, accelerator.process_index)
    while not pace.ended:
        for x, y in batches:
            optimizer.zero_grad()
            loss = task.loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            pace.step()
            if pace.ended:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main()
