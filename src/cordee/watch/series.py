"""The steps, epochs and checkpoints of a run as curves, in memory that hardly grows with the run.

Of every step only its number, time, length and samples are kept (32 bytes): percentiles need the lengths, and a step
that is done again counts once.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence

from cordee.core.events import CheckpointEvent, EpochEvent, JobEvent, StepEvent
from cordee.core.times import percentiles
from cordee.watch.summary import Curve, Latency
from cordee.watch.thin import Thinner, column, curve, rate, spread

LOSS_ROWS = 2000
PACE_ROWS = 300
EPOCH_ROWS = 500
CLASSES = 40
"""Of the histogram."""


class Series:
    """Takes what was trained, evaluated and saved; times are given in seconds of running."""

    def __init__(self) -> None:
        """Nothing was trained yet."""
        self.step = self.epochs = 0
        self.seconds = 0.0
        """When the last step was committed."""
        self.last: StepEvent | None = None
        self.validation: Mapping[str, float | None] = {}
        self.steps, self.committed, self.lengths = array("q"), array("d"), array("d")
        """Number, time of day and length in milliseconds of all steps, also of those that were done again."""
        self.checkpoints = 0
        self.other_s = {"evaluation": 0.0, "saving": 0.0}
        self._is_job = False
        self._all_samples = 0
        """Of all steps, also of those that were done again."""
        self._samples = array("q")
        """Of each step that stands: one that is done again takes the place of the first."""
        self._learning, self._pace = Thinner(LOSS_ROWS), Thinner(PACE_ROWS)
        self._metrics, self._saves = Thinner(EPOCH_ROWS), Thinner(EPOCH_ROWS)
        self._metric_names: dict[str, None] = {}

    def on_job(self, event: JobEvent, seconds: float) -> None:
        """So many steps stand; later ones will be done again."""
        self._is_job, self.step = True, event.steps
        del self._samples[event.steps :]

    def on_step(self, event: StepEvent, seconds: float) -> None:
        """A step was committed; without a job, only its steps tell how many epochs a script began."""
        self.step, self.seconds, self.last = event.step, seconds, event
        if not self._metrics.rows:
            self.epochs = event.epoch + (0 if self._is_job else 1)
        learning, pace = self._learning.row(self.step, seconds), self._pace.row(self.step, seconds)
        for name in ("loss", "lr", "grad_norm"):
            learning.note(name, getattr(event, name))
        pace.note("ms", event.ms)
        pace.note("samples", event.samples)
        self.steps.append(event.step)
        self.committed.append(event.moment)
        self.lengths.append(event.ms)
        self._all_samples += event.samples
        del self._samples[self.step - 1 :]
        self._samples.append(event.samples)

    def on_epoch(self, event: EpochEvent, seconds: float) -> None:
        """An epoch ended."""
        self.epochs = event.epoch + 1
        self.other_s["evaluation"] += event.ms / 1e3
        self.validation = event.validation or self.validation
        row = self._metrics.row(event.step, self.seconds)
        for name, value in event.validation.items():
            self._metric_names.setdefault(name)
            row.note(name, value)

    def on_checkpoint(self, event: CheckpointEvent, seconds: float) -> None:
        """A checkpoint was written."""
        self.checkpoints += 1
        self.other_s["saving"] += event.ms / 1e3
        self._saves.row(event.step, seconds).note("ms", event.ms)

    def go_on_after(self, step: int) -> None:
        """The run was resumed after `step`."""
        for thinner in (self._learning, self._pace, self._metrics, self._saves):
            thinner.go_on_after(step)

    @property
    def samples(self) -> int:
        """Samples of the steps that stand."""
        return sum(self._samples)

    @property
    def throughput(self) -> float:
        """Samples per second, over the time of the steps."""
        whole_s = sum(self.lengths) / 1e3
        return round(self._all_samples / whole_s, 2) if whole_s else 0.0

    def curves(self) -> dict[str, Curve]:
        """`losses`, `pace`, `metrics` and `saves`, as the summary has them."""
        learning, pace, metrics, saves = (one.rows for one in (self._learning, self._pace, self._metrics, self._saves))
        known = {name for row in learning for name in row.cells}
        losses = spread(learning, "loss")
        losses |= spread(learning, "grad_norm") if "grad_norm" in known else {}
        losses |= {"lr": column(learning, "lr")} if "lr" in known else {}
        throughput = tuple(None if one is None else 1e3 * one for one in rate(pace, "samples", "ms"))
        return {
            "losses": curve(learning, losses),
            "pace": curve(pace, {"throughput": throughput, **spread(pace, "ms")}),
            "metrics": curve(metrics, {name: column(metrics, name) for name in self._metric_names}),
            "saves": curve(saves, {"ms": column(saves, "ms")}),
        }


def latency(lengths: Sequence[float]) -> Latency:
    """The lengths of all steps in a few numbers."""
    if not lengths:
        return Latency()
    p50, p95, p99 = percentiles(lengths, 50, 95, 99)
    low, longest = min(lengths), max(lengths)
    high = min(longest, 1.5 * p99)
    classes = min(CLASSES, len(lengths)) if high > low else 1
    width = (high - low) / classes or 1.0
    counts = Counter(min(classes - 1, int((ms - low) / width)) for ms in lengths if ms <= high)
    return Latency(
        p50=round(p50, 4),
        p95=round(p95, 4),
        p99=round(p99, 4),
        longest=round(longest, 4),
        edges=tuple(round(low + width * place, 6) for place in range(classes + 1)),
        counts=tuple(counts[place] for place in range(classes)),
        beyond=len(lengths) - sum(counts.values()),
    )
