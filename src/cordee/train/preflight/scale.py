"""S, the scale test: what one sample adds, times the weight of its batch, must not grow with the batch.

Only where draws could not be replayed: it is statistical, and tells a sum from a mean, no more.
"""

from __future__ import annotations

from cordee.train.preflight.findings import Finding
from cordee.train.preflight.passes import Passes
from cordee.train.preflight.samples import Samples

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
    swapped = len(samples) - 1
    for seed in range(SEEDS):
        one, other = (passes.run(samples.batch([first, *range(1, size)]), seed=seed) for first in (0, swapped))
        if not (one.finite and other.finite):
            return None
        pairs = zip([one.loss, *one.sketch], [other.loss, *other.sketch], strict=True)
        total += sum(abs(one.weight * left - other.weight * right) for left, right in pairs)
    return total / SEEDS
