"""The model of a finished training as a program that needs no source code."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from torch import nn

from cordee.core.errors import CheckpointError
from cordee.core.events import WarningEvent
from cordee.feed.batch import Batch
from cordee.feed.permute import Ids
from cordee.feed.source import map_tensors
from cordee.state.export import PROGRAM, Traced, called_with, save_program, trace_program
from cordee.train.job import Job
from cordee.train.saving import Saver
from cordee.train.stepper import Stepper


class Exporter:
    """Traces a model as its job calls it, and writes the program; why that cannot be done is a note in the record."""

    def __init__(self, job: Job, stepper: Stepper, ids: Ids, saver: Saver) -> None:
        """By the samples `ids`; what is done while the `saver` writes takes no time of its own."""
        self._job, self._stepper, self._ids, self._saver = job, stepper, ids, saver
        self._traced: Traced | None = None
        self._gave_up = False

    def trace(self, model: nn.Module) -> None:
        """Trace it on the worker that writes: seconds for large models, best spent while a checkpoint is written."""
        if self._stepper.team.speaks:
            with self._aside():
                try:
                    self._traced = self._trace(model)
                except CheckpointError as error:
                    self._give_up(error)

    def write(self, model: nn.Module, out: Path) -> None:
        """Write what was traced, if it still is the model; otherwise trace it first."""
        with self._aside():
            if self._traced is not None:
                try:
                    save_program(out / PROGRAM, model, self._traced)
                    return
                except CheckpointError:  # it was changed since, as a callback may do at the end of a run
                    self._traced = None
            if not self._gave_up:
                try:
                    save_program(out / PROGRAM, model, self._trace(model))
                except CheckpointError as error:
                    self._give_up(error)

    def _aside(self) -> AbstractContextManager[None]:
        return self._stepper.reporter.aside(lambda: "saving" if self._saver.busy else "tracing")

    def _trace(self, model: nn.Module) -> Traced:
        fields = self._job.data.train.gather(self._ids)
        batch = Batch(self._ids, map_tensors(lambda tensor: tensor.to(self._stepper.device), fields))
        ways = (lambda: self._job.compute(model, batch), lambda: model(batch.x))
        return trace_program(model, *called_with(model, *ways))

    def _give_up(self, error: CheckpointError) -> None:
        self._gave_up = True
        self._stepper.reporter.tell(WarningEvent(str(error)))
