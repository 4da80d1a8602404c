"""Tests that compute a batch again: with one sample swapped, after nothing, and after another batch.

S, the scale test: what one sample adds, times the weight of its batch, must not grow with the batch. It is used only
where draws could not be replayed: it is statistical, and tells a sum from a mean, no more.

State: a counter or a log changes at every pass and harms nothing. A centre, a queue or a codebook that is computed from
the batch is another one on every worker, as each sees its share only.
"""

from __future__ import annotations

from collections.abc import Sequence

from cordee.diagnose.preflight.findings import TINY, Finding, weigh
from cordee.diagnose.preflight.passes import Pass, Passes
from cordee.diagnose.preflight.samples import Samples

SMALL, LARGE = 2, 32
SEEDS = 8
MOST_GROWTH = 4.0
"""A mean stays below 3 for batches of 2 and 32, a sum is above 6."""


def scale(passes: Passes, samples: Samples, largest: int) -> Finding:
    """Swap one sample in small and in large batches."""
    large = min(LARGE, largest, len(samples) - 1)
    if large < LARGE // 2:
        return Finding("scale", void="too few samples", trusted=False)
    small, big = (_change(passes, samples, size) for size in (SMALL, large))
    if not small or big is None:
        return Finding("scale", void="the loss does not depend on its samples")
    return Finding("scale", over=big / small / MOST_GROWTH, is_sum=True)


def _change(passes: Passes, samples: Samples, size: int) -> float | None:
    """The mean change of weight times loss and gradient when the first sample is swapped for another."""
    total = 0.0
    for seed in range(SEEDS):
        firsts = (0, len(samples) - 1)
        pair = [passes.run(samples.batch([first, *range(1, size)]), seed=seed) for first in firsts]
        if not all(one.finite for one in pair):
            return None
        total += float(weigh(pair, [one.weight for one in pair]).diff(dim=0).abs().sum())
    return total / SEEDS


def repeat(passes: Passes, samples: Samples, places: Sequence[int], first: Pass) -> Finding:
    """The same batch once more: state that is not within reach shows itself by another loss."""
    return Finding("repeat", over=_distance(first, passes.run(samples.batch(places))), trusted=False)


def aftermath(passes: Passes, samples: Samples, names: Sequence[str]) -> Finding:
    """The same batch after two different ones: later losses must not depend on which of them it was."""
    half = min(8, len(samples) // 2)
    if not names or not half:
        return Finding("state", void="no state")
    ends = []
    for before in (range(half), range(half, 2 * half)):
        passes.run(samples.batch(before))
        ends.append(passes.run(samples.batch(range(half)), go_on=True))
    return Finding("state", over=_distance(*ends), state=", ".join(names)[:500])


def _distance(one: Pass, other: Pass) -> float:
    """How much two passes differ, in units of what rounding explains."""
    if not (one.finite and other.finite):
        return 0.0
    tolerance = max(1e-6, 8 * one.epsilon, 8 * one.low) * (abs(one.loss) + one.size)
    return float((one.vector - other.vector).abs().max()) / (tolerance + TINY)
