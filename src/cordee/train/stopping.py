"""Why a training ends, as values: early stopping, and the cause in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cordee.train.job import Job, Stop


@dataclass(frozen=True)
class Ending:
    """What was the case when a training ended."""

    steps: int
    """Committed by then, over all starts of the run."""
    epochs: int
    """Completed by then."""
    asked: str | None = None
    """Why it was asked to end from outside; None if it was not."""
    exhausted: bool = False
    """Whether early stopping had run out of patience."""
    wish: str = ""
    """What this worker itself wished to end it for; another worker's wish is not known here."""

    def told(self, stop: Stop, epochs: int | None) -> str:
        """Why it ended, in words, if it was to `stop` so, or after so many epochs."""
        return f"after step {self.steps}: {self._cause(stop, epochs)}"

    def _cause(self, stop: Stop, epochs: int | None) -> str:
        if self.asked is not None:
            return self.asked
        if epochs is not None and self.epochs >= epochs:
            return f"all {epochs} epochs are done" if epochs > 1 else "its epoch is done"
        if stop.steps is not None and self.steps >= stop.steps:
            return f"Stop(steps={stop.steps})"
        if self.exhausted:
            evaluations = f"{stop.patience} evaluations" if stop.patience > 1 else "an evaluation"
            return f"Stop(metric={stop.metric!r}, patience={stop.patience}), after {evaluations} without progress"
        return self.wish or " or ".join(wishes(stop)) or "a callback wished to stop"


def wishes(stop: Stop) -> list[str]:
    """The conditions that each worker looks at by itself, in words."""
    minutes = [f"Stop(minutes={stop.minutes:g})"] if stop.minutes is not None else []
    return minutes + (["Stop(when=...)"] if stop.when is not None else [])


def score(metric: str, metrics: Mapping[str, float]) -> float | None:
    """How good an evaluation is: more is better, except of `loss` or with a leading minus. None: it is not finite."""
    name = metric.lstrip("-")
    value = metrics[name]
    if not math.isfinite(value):
        return None
    return -value if is_falling(metric) else value


def is_falling(metric: str) -> bool:
    """Whether less of it is better."""
    return metric.startswith("-") or metric == "loss"


class Patience:
    """Counts evaluations without progress. Fed with agreed values, it decides the same on every worker."""

    def __init__(self, metric: str | None, patience: int, least_gain: float) -> None:
        """`metric` as in `score`. None: never exhausted."""
        self._metric, self._patience, self._least_gain = metric, patience, least_gain
        self._best: float | None = None
        self._waited = 0

    @property
    def exhausted(self) -> bool:
        """Whether it is time to stop."""
        return self._metric is not None and self._waited >= self._patience

    def see(self, metrics: Mapping[str, float]) -> None:
        """One more evaluation."""
        if self._metric is None:
            return
        value = score(self._metric, metrics)
        if value is not None and (self._best is None or value > self._best + self._least_gain):
            self._best, self._waited = value, 0
        else:
            self._waited += 1

    def to_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"best": self._best, "waited": self._waited}

    def take_up(self, kept: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was."""
        self._best, self._waited = kept["best"], kept["waited"]


def last_step(job: Job, steps_per_epoch: int) -> int | None:
    """The step after which a run ends if nothing else ends it; None where only something else does."""
    ends = [job.epochs * steps_per_epoch] if job.epochs is not None else []
    ends += [job.stop.steps] if job.stop.steps is not None else []
    return min(ends, default=None)
