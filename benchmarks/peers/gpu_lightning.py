"""The peer Lightning on a GPU, compiled, in bf16 and barebones: `gpu_lightning.py TASK SOCKET NAME [usual | plain]`.

`plain` compiles nothing, which is what a `Trainer` does by itself.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import torch
from gpu_loader import loader
from gpu_tasks import TASKS, GpuTask
from pace import Pace
from torch import Tensor, nn

try:
    import lightning
except ImportError:  # the same under its older name
    import pytorch_lightning as lightning


class Module(lightning.LightningModule):
    """A task's model with its loss and optimizer."""

    def __init__(self, task: GpuTask, *, compiles: bool) -> None:
        """Make the model."""
        super().__init__()
        self.task, self.model = task, task.model()
        if any(isinstance(module, nn.Conv2d) for module in self.model.modules()):
            self.model = self.model.to(memory_format=torch.channels_last)
        self.loss_of = self._loss_of
        if compiles:
            self.loss_of = torch.compile(self._loss_of)

    def _loss_of(self, x: Tensor, y: Tensor) -> Tensor:
        """What is compiled."""
        return self.task.loss(self.model(self.task.augmented(x)), y)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of a batch."""
        loss: Tensor = self.loss_of(*batch)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The task's own."""
        return self.task.optimizer(self.parameters())


class Turns(lightning.Callback):
    """Blocks between two steps while it is not our turn."""

    def __init__(self, path: str, system: str) -> None:
        """Connect at the start of the training."""
        self._path, self._system = path, system
        self._pace: Pace | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Everything is ready for the first step."""
        self._pace = Pace(self._path, self._system, 0, settle=torch.cuda.synchronize)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any, **more: Any) -> None:
        """The optimizer has stepped."""
        assert self._pace is not None
        self._pace.step()
        if self._pace.ended:
            trainer.should_stop = True


def main() -> None:
    """Train until nobody wants a further step."""
    name, path, system, *usual = sys.argv[1:]
    task = TASKS[name]
    torch.manual_seed(0)
    trainer = lightning.Trainer(
        accelerator="gpu", devices=1, precision="bf16-mixed", max_epochs=-1, barebones=True,
        callbacks=[Turns(path, system)],
    )  # fmt: skip
    # The usual loader has augmented its batches.
    module = Module(replace(task, augment=None) if usual else task, compiles=usual != ["plain"])
    trainer.fit(module, loader(task, usual=bool(usual)))


if __name__ == "__main__":
    main()
