"""The peer Accelerate with its LocalSGD, as its documentation writes the loop.

Started by `network.py` like `network_ddp.py`: `network_accelerate.py TASK SOCKET NAME STEPS_PER_MERGE`.
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from gathered import loader
from pace import Pace
from peers.shakespeare import TASKS


def main() -> None:
    """Train until there is no further turn."""
    name, path, system, every = sys.argv[1:]
    task = TASKS[name]
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    accelerator = Accelerator(cpu=True)
    plain = task.model()
    torch.manual_seed(0)  # the order of the samples
    model, optimizer, batches = accelerator.prepare(
        plain, task.optimizer(plain.parameters()), loader(task, accelerator.num_processes)
    )
    measure = task.measure_of(lambda: accelerator.unwrap_model(model))
    pace = Pace(path, system, accelerator.process_index, measure=measure)
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=int(every), enabled=True) as local_sgd:
        while not pace.ended:
            for x, y in batches:
                loss = task.loss(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                local_sgd.step()
                pace.step()
                if pace.ended:
                    break
    accelerator.end_training()


if __name__ == "__main__":
    main()
