"""The peer Accelerate on a GPU, compiled and in bf16: `gpu_accelerate.py TASK SOCKET NAME [usual | plain]`.

`plain` compiles nothing, which is what `Accelerator` does by itself.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
from accelerate import Accelerator
from gpu_loader import loader
from gpu_tasks import TASKS
from pace import Pace
from torch import nn


def main() -> None:
    """Train until nobody wants a further step."""
    name, path, system, *usual = sys.argv[1:]
    task = TASKS[name]
    torch.manual_seed(0)
    compiles = usual != ["plain"]
    accelerator = Accelerator(mixed_precision="bf16", dynamo_backend="inductor" if compiles else "no")
    plain = task.model()
    if any(isinstance(module, nn.Conv2d) for module in plain.modules()):
        plain = plain.to(memory_format=torch.channels_last)
    feed = loader(task, usual=bool(usual))
    model, optimizer, batches = accelerator.prepare(plain, task.optimizer(plain.parameters()), feed)
    if usual:  # its loader has augmented them
        task = replace(task, augment=None)
    augmented = torch.compile(task.augmented) if task.augment is not None else task.augmented
    pace = Pace(path, system, 0, settle=torch.cuda.synchronize)
    while not pace.ended:
        for x, y in batches:
            optimizer.zero_grad()
            with accelerator.autocast():
                loss = task.loss(model(augmented(x)), y)
            accelerator.backward(loss)
            optimizer.step()
            pace.step()
            if pace.ended:
                break


if __name__ == "__main__":
    main()
