"""How a job scales, from the step times of runs with different numbers of workers: values and their statistics.

Runs come in rounds, and every round has one run per count. A run gives one number of each kind: its median step, its
95th percentile, its samples per second. All comparisons are made within a round, where the machine was in much the same
state, and only then put together.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from cordee.core.times import percentiles

FEWEST_ROUNDS = 3
"""Two rounds differ or do not by chance: their t interval spans powers of ten, and says nothing."""

_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t at 97.5 %, for 1, 2, ... degrees of freedom."""


@dataclass(frozen=True)
class Timed:
    """The measured steps of one run: from the end of the step before to its own end, and how many samples it held."""

    workers: int
    round: int
    seconds: tuple[float, ...]
    samples: tuple[int, ...]

    @property
    def p50_ms(self) -> float:
        """The median step."""
        return statistics.median(self.seconds) * 1e3

    @property
    def p95_ms(self) -> float:
        """The step that 95 of 100 are not slower than."""
        return percentiles(self.seconds, 95)[0] * 1e3

    @property
    def throughput(self) -> float:
        """Samples per second, over all measured steps together."""
        return sum(self.samples) / sum(self.seconds)

    @property
    def speed(self) -> float:
        """Steps per second, by the median."""
        return 1e3 / self.p50_ms


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval; one that holds by definition, or is of too few rounds, has none."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def span(self) -> tuple[float, float] | None:
        """The interval, if there is one."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def times(self, factor: float) -> Estimate:
        """The same for a multiple of the figure."""
        return Estimate(self.value * factor, *(end * factor for end in self.span or ()))


@dataclass(frozen=True)
class Figures:
    """What was measured with one number of workers."""

    workers: int
    batch: int
    """Samples of a step."""
    p50_ms: Estimate
    p95_ms: Estimate
    throughput: Estimate
    """Samples per second."""
    speed_up: Estimate | None
    """Against the smallest count: its median step over this one's, or with `weak` the ratio of throughputs."""
    efficiency: Estimate | None
    """The speed-up over the one in proportion to the workers."""
    oversubscribed: bool


def figures(runs: Sequence[Timed], *, weak: bool = False, oversubscribed: Sequence[int] = ()) -> list[Figures]:
    """The figures of every count, from the smallest up; speed-up and efficiency are None with one count only."""
    counts = sorted({run.workers for run in runs})
    of = {count: sorted((run for run in runs if run.workers == count), key=lambda run: run.round) for count in counts}
    first = of[counts[0]]
    speed = attrgetter("throughput" if weak else "speed")
    found = []
    for count, mine in of.items():
        speed_up = None if len(counts) == 1 else Estimate(1.0) if mine is first else estimate(speed, mine, first)
        found.append(
            Figures(
                workers=count,
                batch=round(statistics.median(samples for run in mine for samples in run.samples)),
                p50_ms=estimate(attrgetter("p50_ms"), mine),
                p95_ms=estimate(attrgetter("p95_ms"), mine),
                throughput=estimate(attrgetter("throughput"), mine),
                speed_up=speed_up,
                efficiency=None if speed_up is None else speed_up.times(counts[0] / count),
                oversubscribed=count in oversubscribed,
            )
        )
    return found


def estimate(
    statistic: Callable[[Timed], float], runs: Sequence[Timed], against: Sequence[Timed] | None = None
) -> Estimate:
    """The geometric mean over rounds of a run's statistic, or of its ratio to that of `against`, with its interval.

    Geometric, so that the ratio of two figures is the figure of their ratio: T1/Tn can be read off the table. The
    interval is that of this mean, for rounds like these on this machine: a t interval of the rounds' logarithms,
    whose spread holds both how runs differ and how steps within a run do. Below `FEWEST_ROUNDS` there is none.
    """
    logs = [math.log(statistic(run)) for run in runs]
    if against is not None:
        logs = [log - math.log(statistic(other)) for log, other in zip(logs, against, strict=True)]
    mean = statistics.fmean(logs)
    if len(logs) < FEWEST_ROUNDS:
        return Estimate(math.exp(mean))
    reach = t_975(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Estimate(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))


def t_975(freedom: int) -> float:
    """Student's t at 97.5 %; beyond the table, its expansion around the normal distribution, right to 0.001."""
    return _T_975[freedom - 1] if freedom <= len(_T_975) else 1.96 + 2.372 / freedom + 2.82 / freedom**2


def order_of_runs(counts: Sequence[int], rounds: int) -> list[tuple[int, int]]:
    """(round, workers) of every run: forwards, then backwards, so that no count always comes first or last."""
    return [
        (number, count)
        for number in range(1, rounds + 1)
        for count in (counts if number % 2 == 1 else tuple(reversed(counts)))
    ]


def is_oversubscribed(workers: int, *, threads: int, cores: int, gpus: int | None = None) -> bool:
    """Whether workers have to share what a larger machine would give each of them; `gpus` is None without any."""
    return workers * threads > cores or (gpus is not None and workers > gpus)
