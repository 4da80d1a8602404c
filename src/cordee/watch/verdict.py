"""Who was slow in a run, and why, in a sentence or two."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from cordee.core.times import PARTS
from cordee.core.words import plural
from cordee.watch.summary import Worker
from cordee.watch.words import capital, milliseconds, parts_of, percent

NOTICEABLE = 0.10
"""Waiting below this share of the time is not worth a word."""


def verdict(workers: Sequence[Worker]) -> str:
    """Who is slow and why, from where the time of the steps went; empty if nothing is known.

    Of several starts it is the one with the most steps, the last of equal ones: workers of different starts did not
    share any.
    """
    starts: dict[int, list[Worker]] = {}
    for one in workers:
        if one.measured_s and one.steps:
            starts.setdefault(one.start, []).append(one)
    if not starts:
        return ""
    steps = {start: max(one.steps for one in members) for start, members in starts.items()}
    number = max(steps, key=lambda start: (steps[start], start))
    sentence = _verdict(starts[number])
    if max(one.start for one in workers) > 1:
        where = f"In start {number}, which did {steps[number]:,} of all {sum(steps.values()):,} steps"
        sentence = f"{where}: {sentence[:1].lower()}{sentence[1:]}"
    return sentence


def _verdict(measured: Sequence[Worker]) -> str:
    if len(measured) == 1:
        return f"Worker {measured[0].worker} works alone ({_shares(measured)})."
    slow = min(measured, key=lambda one: (one.share("waiting"), -_own_ms(one)))
    others = [one for one in measured if one is not slow]
    waiting = _mean(others, "waiting")
    is_slower = _own_ms(slow) > 1.1 * statistics.median(_own_ms(one) for one in others)
    holds_up = is_slower and waiting >= max(NOTICEABLE, 2 * slow.share("waiting"))
    return (_held_up(slow, others, waiting) if holds_up else _together(measured)) + _crowded(measured)


def _crowded(measured: Sequence[Worker]) -> str:
    """A sentence if the workers of a host have fewer cores than they are; those that wait for a core seem slow."""
    hosts: dict[str, list[Worker]] = {}
    for one in measured:
        if one.cores is not None and one.device == "cpu":
            hosts.setdefault(one.host, []).append(one)
    shared = [
        f"{len(there)} workers share {plural(cores, 'core')}{f' on {host}' if len(hosts) > 1 else ''}"
        for host, there in hosts.items()
        if len(there) > max(1.0, cores := max(one.cores or 0.0 for one in there))
    ]
    return f" {'; '.join(shared)}: some of this time is spent waiting for a free core." if shared else ""


_DOING = {"data": "waiting for data", "compute": "computing", "callbacks": "in callbacks"}


def _held_up(slow: Worker, others: Sequence[Worker], waiting: float) -> str:
    def theirs(part: str) -> float:
        return statistics.median(_per_step(one, part) for one in others)

    part = max(_DOING, key=lambda one: _per_step(slow, one) - theirs(one))
    own, usual = _per_step(slow, part), theirs(part)
    who, crowd, whose = ("other", "other waits", "its") if len(others) == 1 else ("others", "others wait", "their")
    times = f", {own / usual:.1f} times as long as the {who}" if usual >= 0.01 and own / usual >= 1.1 else ""
    return (
        f"Worker {slow.worker} is the slowest: it spends {percent(slow.share(part))} of its steps {_DOING[part]}"
        f"{times}, while the {crowd} {percent(waiting)} of {whose} time.{_stopped(slow, others)}"
    )


def _stopped(slow: Worker, others: Sequence[Worker]) -> str:
    """A sentence if pauses are at least half of what it is slower by."""
    paused, usual = _paused_ms(slow), statistics.median(_paused_ms(one) for one in others)
    if 2 * (paused - usual) < _own_ms(slow) - statistics.median(_own_ms(one) for one in others):
        return ""
    return f" Its process did not run for {milliseconds(paused)} of each step: it was stopped, or had no processor."


def _paused_ms(one: Worker) -> float:
    return 1e3 * one.paused_s / one.steps


def _together(measured: Sequence[Worker]) -> str:
    shares = {part: _mean(measured, part) for part in PARTS}
    largest = max(shares, key=lambda part: shares[part])
    much = "most" if shares[largest] > 0.5 else "the largest part"
    spends = f"{much} of the time is spent {_DOING.get(largest, 'in communication')}"
    lead = {
        "compute": f"No worker holds the others up, and {spends}",
        "communication": f"Communication takes {much} of the time: steps are short for the way between these workers",
    }.get(largest, capital(spends))
    if shares["waiting"] >= NOTICEABLE:
        lead = "The workers wait for each other by turns; none of them is always the last"
        lead += f". {capital(spends)}" if largest != "waiting" else ""
    return f"{lead} ({_shares(measured)})."


def _shares(measured: Sequence[Worker]) -> str:
    """How much of the time goes into each part, as a mean over the workers."""
    return ", ".join(f"{part} {percent(_mean(measured, part))}" for part in parts_of(measured))


def _mean(workers: Sequence[Worker], part: str) -> float:
    return statistics.fmean(one.share(part) for one in workers)


def _per_step(one: Worker, part: str) -> float:
    return 1e3 * one.time_s.get(part, 0.0) / one.steps


def _own_ms(one: Worker) -> float:
    """Milliseconds per step that do not depend on others."""
    return sum(_per_step(one, part) for part in _DOING)
