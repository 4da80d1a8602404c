"""What evaluations decide: which model is the best, and when to stop early; and why a training ended, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cordee.train.job import Job, Stop


class Evaluations:
    """The best validation so far, the first of equal ones, and how many came since there was progress.

    Fed with agreed values, it decides the same on every worker.
    """

    def __init__(self, stop: Stop, keep_best: str | None) -> None:
        """The best is that by `keep_best`, else by the metric of early stopping; without either there is none."""
        self._stop = stop
        self.metric = _signed(keep_best or stop.metric)
        """What the best goes by, with a leading minus if less is better."""
        self.step = -1
        """Steps that were committed when the best was measured; -1: nothing finite was measured yet."""
        self.validation: dict[str, float] = {}
        self._epoch = 0
        self._progress: float | None = None
        """How good the evaluation was that made progress last, by the metric of early stopping."""
        self._waited = 0
        self._lasting: dict[str, Any] | None = None
        """What a checkpoint gets, where it is not what is known now."""

    @property
    def exhausted(self) -> bool:
        """Whether early stopping has run out of patience."""
        return self._stop.metric is not None and self._waited >= self._stop.patience

    def see(self, step: int, epoch: int, validation: Mapping[str, float], *, passing: bool = False) -> None:
        """One more evaluation, after so many steps; it is the best so far if `step` is this one now.

        A `passing` one, of a run that was stopped within an epoch, counts for this ending only: a run that goes on, or
        that was never stopped, does not have it.
        """
        self._lasting = self.to_dict() if passing else None
        value = _score(self.metric, validation)
        if value is not None and (self.step < 0 or value > (_score(self.metric, self.validation) or 0.0)):
            self.step, self._epoch, self.validation = step, epoch, dict(validation)
        if passing or self._stop.metric is None:
            return
        value = _score(_signed(self._stop.metric), validation)
        if value is not None and (self._progress is None or value > self._progress + self._stop.least_gain):
            self._progress, self._waited = value, 0
        else:
            self._waited += 1

    def best(self) -> dict[str, Any] | None:
        """For the result; None if there is no best."""
        if self.metric is None or self.step < 0:
            return None
        name = self.metric.lstrip("-")
        return {"metric": name, "value": self.validation[name], "step": self.step, "epoch": self._epoch}

    def to_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        best = {"metric": self.metric, "step": self.step, "epoch": self._epoch, "validation": self.validation}
        return self._lasting or {**best, "progress": self._progress, "waited": self._waited}

    def take_up(self, kept: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was; one that went by another metric does not say what was the best by this one."""
        self._progress, self._waited = kept["progress"], kept["waited"]
        if kept["metric"] == self.metric:
            self.step, self._epoch, self.validation = kept["step"], kept["epoch"], dict(kept["validation"])


def _signed(metric: str | None) -> str | None:
    """A metric with a leading minus if less is better, as of `loss`."""
    return "-loss" if metric == "loss" else metric


def _score(metric: str | None, metrics: Mapping[str, float]) -> float | None:
    """How good an evaluation is: more is better. None: by no metric, or by a value that is not finite."""
    value = math.nan if metric is None else metrics[metric.lstrip("-")]
    if metric is None or not math.isfinite(value):
        return None
    return -value if metric.startswith("-") else value


def tell_cause(job: Job, steps: int, epochs: int, *, exhausted: bool) -> str:
    """Why a training ended after so many steps and epochs; `exhausted`: early stopping had run out of patience."""
    stop = job.stop
    if job.epochs is not None and epochs >= job.epochs:
        return f"all {job.epochs} epochs are done" if job.epochs > 1 else "its epoch is done"
    if stop.steps is not None and steps >= stop.steps:
        return f"Stop(steps={stop.steps})"
    if exhausted:
        evaluations = f"{stop.patience} evaluations" if stop.patience > 1 else "an evaluation"
        return f"Stop(metric={stop.metric!r}, patience={stop.patience}), after {evaluations} without progress"
    # Each worker looks at these by itself: another one's wish is not known here.
    wishes = [f"Stop(minutes={stop.minutes:g})"] if stop.minutes is not None else []
    return " or ".join(wishes + ["Stop(when=...)"] * (stop.when is not None)) or "a callback wished to stop"


def boundary(job: Job, per_epoch: int, copied: int, steps: int) -> int | None:
    """After so many steps, the next one that all workers have to end together, equal: saved, measured, or the last.

    `copied`: steps between two copies of the state in memory, or 0. At the end of an epoch callbacks may do so.
    """
    epochs = steps // per_epoch + 1
    measured = job.data.validation is not None or bool(job.callbacks) or epochs == job.epochs
    measured |= job.save.epochs is not None and epochs % job.save.epochs == 0
    ends = [steps - steps % one + one for one in (job.save.steps, copied) if one]
    ends += [] if job.stop.steps is None else [job.stop.steps]
    return min([*ends, *([epochs * per_epoch] if measured else [])], default=None)
