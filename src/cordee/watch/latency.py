"""How long steps took: percentiles and a histogram."""

from __future__ import annotations

from collections.abc import Sequence

from cordee.watch.summary import Latency

CLASSES = 40
"""Of the histogram."""
AROUND = 20
"""Steps on either side of one that say what is usual there."""


def latency(lengths: Sequence[float]) -> Latency:
    """The lengths of all steps in a few numbers."""
    if not lengths:
        return Latency()
    ordered = sorted(lengths)
    p50, p95, p99 = (percentile(ordered, share) for share in (0.50, 0.95, 0.99))
    low, longest = ordered[0], ordered[-1]
    high = min(longest, 1.5 * p99)
    classes = min(CLASSES, len(ordered)) if high > low else 1
    width = (high - low) / classes or 1.0
    counts = [0] * classes
    beyond = 0
    for one in ordered:
        if one > high:
            beyond += 1
        else:
            counts[min(classes - 1, int((one - low) / width))] += 1
    return Latency(
        p50=round(p50, 4),
        p95=round(p95, 4),
        p99=round(p99, 4),
        mean=round(sum(ordered) / len(ordered), 4),
        longest=round(longest, 4),
        edges=tuple(round(low + width * place, 6) for place in range(classes + 1)),
        counts=tuple(counts),
        beyond=beyond,
    )


def usual(lengths: Sequence[float], place: int, begin: int = 0) -> float | None:
    """The median of the steps around the one at `place`, but none before `begin`; None if there are none."""
    around = sorted((*lengths[max(begin, place - AROUND) : place], *lengths[place + 1 : place + 1 + AROUND]))
    return percentile(around, 0.5) if around else None


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the ordered ones lie, between neighbours in proportion."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
