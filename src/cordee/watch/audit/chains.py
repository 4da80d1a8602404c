"""The chains of digests that the order of the data gives, and whether it has each sample once per epoch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cordee.feed.order import Order, chain, delivered_each

AT_ONCE = 2**16
"""Ids that are computed at a time: 512 KiB."""


def recompute(order: Order, wanted: set[int]) -> dict[int, tuple[str, int]]:
    """After each of these numbers of steps, the chain and the samples by the order."""
    sha, samples, found = "", 0, {0: ("", 0)}
    for number, (digest, size) in enumerate(_digests(order, max(wanted, default=0))):
        sha, samples = chain(sha, number, digest, size), samples + size
        if number + 1 in wanted:
            found[number + 1] = sha, samples
    return found


def _digests(order: Order, steps: int) -> Iterator[tuple[int, int]]:
    """Digest and size of each global batch, for so many steps."""
    for epoch, run in _runs(order, steps):
        digests = delivered_each(order.span(epoch, run), order.batch)
        yield from zip(digests, map(order.size, run), strict=True)


def _runs(order: Order, steps: int) -> Iterator[tuple[int, range]]:
    """Epoch and steps within it, some at a time, for so many steps."""
    done, most = 0, max(1, AT_ONCE // order.batch)
    while done < steps:
        epoch, step = divmod(done, order.steps)
        run = range(step, min(step + most, order.steps, step + steps - done))
        yield epoch, run
        done += len(run)


def epochs_with_a_sample_twice(order: Order, steps: int) -> Iterator[tuple[int, int]]:
    """Epoch, and steps until its end; none by a sound order, and endless data has no epochs."""
    if order.steps_per_epoch is not None:
        return
    seen, count = np.zeros(order.samples, dtype=bool), 0
    for epoch, run in _runs(order, steps):
        if run.start == 0:
            seen[:], count = False, 0
        ids = order.span(epoch, run)
        seen[ids], count = True, count + len(ids)
        if (epoch * order.steps + run.stop == steps or run.stop == order.steps) and np.count_nonzero(seen) != count:
            yield epoch, epoch * order.steps + run.stop
