"""The best model of a training: which validation was the best so far, and how its model comes back at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from cordee.core.errors import CheckpointError
from cordee.core.events import WarningEvent
from cordee.state.handover import share_snapshot
from cordee.state.naming import Snapshot, restore
from cordee.train.job import Job
from cordee.train.saving import Saver
from cordee.train.stepper import Stepper
from cordee.train.stopping import is_falling, score


class Best:
    """The best validation so far, the first of equal ones. Fed with agreed values, it is the same on every worker."""

    def __init__(self, job: Job) -> None:
        """By the metric of `Save(keep_best=...)`, else by that of early stopping; without either there is no best."""
        self._metric = job.save.keep_best or job.stop.metric
        self.step = -1
        """Steps that were committed when it was measured; -1: nothing finite was measured yet."""
        self.validation: dict[str, float] = {}
        self._epoch = 0
        self._lasting: dict[str, Any] | None = None
        """What a checkpoint gets, where it is not what is known now."""

    @property
    def metric(self) -> str | None:
        """What it goes by, with a leading minus if less is better."""
        return f"-{self._metric.lstrip('-')}" if self._metric and is_falling(self._metric) else self._metric

    def see(self, step: int, epoch: int, validation: Mapping[str, float], *, passing: bool = False) -> None:
        """One more evaluation, after so many steps; it is the best so far if `step` is this one now.

        A `passing` one, of a run that was stopped within an epoch, counts for this ending only: a run that goes on, or
        that was never stopped, does not have it.
        """
        self._lasting = self.to_dict() if passing else None
        value = None if self._metric is None else score(self._metric, validation)
        if value is not None and (self.step < 0 or value > (score(str(self._metric), self.validation) or 0.0)):
            self.step, self._epoch, self.validation = step, epoch, dict(validation)

    def bring_back(self, stepper: Stepper, model: nn.Module, saver: Callable[[], Saver]) -> bool:
        """Give `model` the weights that it had then, on every worker; False, and a note, if they cannot be read.

        Only the worker that speaks for all reads, with what `saver()` gives it: others may not see the folder.
        """

        def read() -> Snapshot | None:
            files = saver()
            try:
                return files.model_of(self.step)
            except CheckpointError as error:
                message = f"the model of this run is the last one, not the best, of step {self.step}: {error}"
                stepper.reporter.tell(WarningEvent(message))
                return None

        snapshot = share_snapshot(stepper.team, read)
        if snapshot is not None:
            restore(snapshot, model)
        return snapshot is not None

    def told(self) -> dict[str, Any] | None:
        """For the result; None if there is no best."""
        if self._metric is None or self.step < 0:
            return None
        name = self._metric.lstrip("-")
        return {"metric": name, "value": self.validation[name], "step": self.step, "epoch": self._epoch}

    def to_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return self._lasting or {
            "metric": self.metric,
            "step": self.step,
            "epoch": self._epoch,
            "validation": self.validation,
        }

    def take_up(self, kept: Mapping[str, Any] | None) -> None:
        """Go on where a checkpoint was; one that went by another metric does not say what was the best by this one."""
        if kept is not None and kept["metric"] == self.metric:
            self.step, self._epoch, self.validation = kept["step"], kept["epoch"], dict(kept["validation"])
