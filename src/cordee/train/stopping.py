"""Early stopping, as a value: how long ago the best evaluation was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Patience:
    """Counts evaluations without progress. Fed with agreed values, it decides the same on every worker."""

    def __init__(self, metric: str | None, patience: int, least_gain: float) -> None:
        """`metric` is maximised; `loss`, or a name with a leading minus, is minimised. None: never exhausted."""
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
        name = self._metric.lstrip("-")
        falling = name == "loss" or self._metric.startswith("-")
        value = -metrics[name] if falling else metrics[name]
        if self._best is None or value > self._best + self._least_gain:
            self._best, self._waited = value, 0
        else:
            self._waited += 1

    def to_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"best": self._best, "waited": self._waited}

    def take_up(self, kept: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was."""
        self._best, self._waited = kept["best"], kept["waited"]
