"""Shares by speed: a pure function from how long each share took to the shares with which all take equally long."""

from __future__ import annotations

from collections.abc import Sequence

from cordee.feed.share import Share

LEAST_GAIN = 0.03
"""Of the slowest share's time, as it is forecast; shares that gain less stay as they are."""


def balance(sizes: Sequence[int], seconds: Sequence[float], batch: int, owners: Sequence[int]) -> Share | None:
    """The share rule with which all take equally long, if these sizes of shares took so many seconds.

    A share's time is taken to grow with its samples. Each gets at least one sample of the batch, also one that had
    none, of which nothing is known before it has; `owners` are the numbers that the proportions belong to. None: what
    there is to gain is not worth a change, or is not known.
    """
    if batch < len(sizes) or len(sizes) < 2:
        return None
    if min(sizes) < 1:
        return _share(_cut([max(size, 1) for size in sizes], batch), owners)
    if min(seconds) <= 0.0:
        return None
    each = [one / size for one, size in zip(seconds, sizes, strict=True)]
    fresh = _cut([1.0 / one for one in each], batch)
    forecast = max(size * one for size, one in zip(fresh, each, strict=True))
    now = max(one * batch / sum(sizes) for one in seconds)
    if forecast > (1.0 - LEAST_GAIN) * now:
        return None
    return _share(fresh, owners)


def sizes_of(share: Share, batches: Sequence[int], owners: Sequence[int]) -> list[int]:
    """For each owner, its samples of batches of these sizes together."""
    return [sum(len(share.positions(size, owners, at)) for size in batches) for at in range(len(owners))]


def _share(sizes: Sequence[int], owners: Sequence[int]) -> Share:
    sized = dict(zip(owners, sizes, strict=True))
    return Share("proportional", tuple(float(sized.get(owner, 0)) for owner in range(max(owners) + 1)))


def _cut(speeds: Sequence[float], batch: int) -> list[int]:
    """Cut a batch by speeds: each sample to the worker that it costs least, after the whole parts and one for each."""
    total = sum(speeds)
    sizes = [max(1, int(batch * speed / total)) for speed in speeds]
    places = range(len(speeds))
    while sum(sizes) > batch:  # some speeds are below one sample: the others give
        sizes[max(places, key=lambda place: sizes[place] / speeds[place] if sizes[place] > 1 else 0.0)] -= 1
    while sum(sizes) < batch:
        sizes[min(places, key=lambda place: (sizes[place] + 1) / speeds[place])] += 1
    return sizes
