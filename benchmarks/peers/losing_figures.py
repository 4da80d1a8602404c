"""From what workers have written down to the figures of `recovery.py`."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple


class Commit(NamedTuple):
    """A step, as one worker has committed it."""

    at: float
    step: int
    samples: int
    """Of all workers."""
    ids: tuple[int, ...]
    """Of this one, if it knows."""


@dataclass(frozen=True)
class Worker:
    """A process, and what it has committed."""

    rank: int
    pid: int
    began: float
    commits: list[Commit] = field(default_factory=list)


def read(folder: Path) -> list[Worker]:
    """All processes that have written something, in the order in which they began."""
    found = []
    for path in folder.glob("*.log"):
        head, *lines = path.read_text().split("\n")[:-1] or [""]  # the last one may be half written
        if len(words := head.split()) != 3:
            continue
        worker = Worker(int(words[0]), int(words[1]), float(words[2]))
        for line in lines:
            at, step, samples, ids = line.split(" ")
            worker.commits.append(
                Commit(float(at), int(step), int(samples), tuple(map(int, filter(None, ids.split(",")))))
            )
        found.append(worker)
    return sorted(found, key=lambda one: one.began)


def usual_step(times: Sequence[float]) -> float:
    """The median from one commit to the next."""
    return statistics.median(late - early for early, late in pairwise(times))


def commit_times(workers: Iterable[Worker], but: int = 0) -> list[float]:
    """When each step was first committed, by workers `but` that of one process; again if it was done again."""
    times = sorted((one.at, one.step) for worker in workers if worker.pid != but for one in worker.commits)
    found: list[tuple[float, int]] = []
    for at, step in times:
        if not found or step > found[-1][1] or at - found[-1][0] > 0.5:
            found.append((at, step))
    return [at for at, _ in found]


def stall(times: Sequence[float], since: float, until: float) -> float:
    """The longest time without a step that ends between two instants, beyond that of a usual step."""
    around = [at for at in times if at <= since][-1:] + [at for at in times if since < at]
    gaps = [late - early for early, late in pairwise(around) if early < until]
    return max(gaps, default=float("inf")) - usual_step(times)


def stall_around(times: Sequence[float], at: float) -> float:
    """The longest of the four gaps between steps around an instant, beyond a usual step."""
    around = [one for one in times if one <= at][-3:] + [one for one in times if one > at][:2]
    return max((late - early for early, late in pairwise(around)), default=float("inf")) - usual_step(times)


def steps_again(workers: Sequence[Worker]) -> int:
    """How many steps were committed a second time, since the state that had them was lost."""
    first: dict[int, float] = {}
    for worker in workers:
        for one in worker.commits:
            first[one.step] = min(one.at, first.get(one.step, one.at))
    return len({one.step for worker in workers for one in worker.commits if one.at - first[one.step] > 0.5})


def history(workers: Sequence[Worker]) -> list[Commit]:
    """What the last state has in it: of a step that was done again, the last time."""
    last: dict[int, float] = {}
    for worker in workers:
        for one in worker.commits:
            last[one.step] = max(one.at, last.get(one.step, one.at))
    return [one for worker in workers for one in worker.commits if last[one.step] - one.at <= 0.5]


def seen_wrongly(commits: Iterable[Commit], count: int) -> tuple[int, int]:
    """Of so many samples: how often one was seen less, and how often more, than there were epochs."""
    seen = Counter(sample for one in commits for sample in one.ids)
    least, most = seen.total() // count, -(-seen.total() // count)
    each = [seen[sample] for sample in range(count)]
    return sum(max(0, least - one) for one in each), sum(max(0, one - most) for one in each)


def samples_between(commits: Iterable[Commit], since: float, until: float) -> int:
    """Samples of the steps that were committed between two instants, and count."""
    steps: dict[int, int] = {}
    for one in commits:
        if since <= one.at < until:
            steps[one.step] = max(one.samples, steps.get(one.step, 0))
    return sum(steps.values())


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Count, median and worst."""
    if not values:
        return {"count": 0}
    return {
        "count": len(values),
        "median": round(statistics.median(values), 4),
        "worst": round(max(values), 4),
        "all": [round(one, 4) for one in values],
    }
