"""The peer Accelerate with its LocalSGD, as its documentation writes the loop.

Started by `network.py` like `network_ddp.py`: `network_accelerate.py TASK SOCKET NAME STEPS_PER_MERGE`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from gathered import Gathered, unchanged
from pace import Pace
from peers.shakespeare import TASKS, TextTask, epoch_of
from torch.utils.data import DataLoader, Sampler


class Ordered(Sampler[int]):
    """The samples of one epoch after the other. Accelerate deals batches of one rank out in turn."""

    def __init__(self, samples: int, batch: int) -> None:
        """Before the first epoch."""
        self._samples, self._batch, self._epochs = samples, batch, itertools.count()

    def __iter__(self) -> Iterator[int]:
        """The next epoch."""
        return iter(epoch_of(next(self._epochs), self._samples, self._batch))

    def __len__(self) -> int:
        """Samples of an epoch."""
        return self._samples // self._batch * self._batch


def loader(task: TextTask, size: int) -> DataLoader[Any]:
    """One rank's loader, before Accelerate has made it distributed: `batch_size` is that of one rank."""
    data = Gathered(*task.data())
    sampler = Ordered(len(data), task.batch)
    return DataLoader(data, batch_size=task.batch // size, sampler=sampler, drop_last=True, collate_fn=unchanged)


def main() -> None:
    """Train until there is no further turn."""
    name, path, system, every = sys.argv[1:]
    task = TASKS[name]
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    accelerator = Accelerator(cpu=True)
    plain = task.model()
    model, optimizer, batches = accelerator.prepare(
        plain, task.optimizer(plain.parameters()), loader(task, accelerator.num_processes)
    )
    keep = task.keeper_of(lambda: accelerator.unwrap_model(model), path)
    pace = Pace(path, system, accelerator.process_index, keep=keep)
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
