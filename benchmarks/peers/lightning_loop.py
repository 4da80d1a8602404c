"""The peer Lightning: a module and a `Trainer` with everything off that is not training.

`barebones` is Lightning's own setting for measuring the `Trainer`: no logger, checkpoints, progress bar or summary.
What is left includes a broadcast of one number before every step (whether rank 0 was told to end), which cannot be
turned off.
Started like `ddp.py`, with LOCAL_RANK and NODE_RANK set too: `lightning_loop.py TASK SOCKET NAME`.
"""

from __future__ import annotations

import sys
from typing import Any

import lightning
import torch
from gathered import loader
from lightning.pytorch.strategies import DDPStrategy
from pace import Pace
from tasks import TASKS, Task
from torch import Tensor

WORKERS = 2


class Module(lightning.LightningModule):
    """A task's model with its loss and optimizer."""

    def __init__(self, task: Task) -> None:
        """Make the model."""
        super().__init__()
        self.task, self.model = task, task.model()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of a batch."""
        x, y = batch
        return self.task.loss(self.model(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The task's own."""
        return self.task.optimizer(self.parameters())


class Turns(lightning.Callback):
    """Blocks between two steps while it is not our turn."""

    def __init__(self, path: str, system: str) -> None:
        """Connect at the start of the training."""
        self._path, self._system = path, system
        self._pace: Pace | None = None

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Everything is ready for the first step."""
        self._pace = Pace(self._path, self._system, trainer.global_rank)

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *rest: Any, **more: Any
    ) -> None:
        """The optimizer has stepped."""
        assert self._pace is not None
        self._pace.step()
        if self._pace.ended:
            trainer.should_stop = True


def main() -> None:
    """Train until nobody wants a further step."""
    name, path, system = sys.argv[1:]
    task = TASKS[name]
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    torch.manual_seed(0)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=WORKERS,
        strategy=DDPStrategy(process_group_backend="gloo", gradient_as_bucket_view=True),
        max_epochs=-1,
        barebones=True,
        callbacks=[Turns(path, system)],
    )
    trainer.fit(Module(task), loader(task, WORKERS))


if __name__ == "__main__":
    main()
