"""I, the interaction test: no sample may change what another one adds to the loss.

Sets a, a' stand at the first places of a batch, b, c at the others, and all four batches have one shape and one seed.
Then L(a, b) - L(a, c) - L(a', b) + L(a', c) is zero if no sample sees another one, whatever is drawn; so are
the same sums of gradients and of weights. It cannot see a sum in place of a mean: the shape is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from cordee.diagnose.preflight.findings import MOST_BUFFERS, TINY, Finding, normalisers, weigh, why_void
from cordee.diagnose.preflight.passes import Pass, Passes
from cordee.diagnose.preflight.samples import Samples

UNEVEN_DRAWS = "its random draws depend on the data"
SIGNS = torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
TOLERANCE_EPSILONS = 8.0
"""Errors of rounding that are allowed, in units of the format's epsilon."""


def quadruple(pool: int, size: int) -> list[list[int]] | None:
    """Places in the pool of a, a', b and c for batches of `size`; None if there are too few samples."""
    size = min(size, pool // 2)
    if size < 2:
        return None
    first = 3 if size >= 6 else 1  # odd, and not half: pairs would not be seen otherwise
    return [list(range(*ends)) for ends in pairwise((0, first, 2 * first, first + size, 2 * size))]


def interaction(passes: Passes, samples: Samples, size: int) -> Finding:
    """Four passes, compared."""
    sets = quadruple(len(samples), size)
    if sets is None:
        return Finding("interaction", void="too few samples")
    a, other, b, c = sets
    cells = [passes.run(samples.batch([*one, *rest])) for one in (a, other) for rest in (b, c)]
    buffers = {name: False for name in list(cells[0].buffers)[:MOST_BUFFERS] if _differ(name, cells)}
    void = why_void(cells)
    if not void and any(one.tape.forms != cells[0].tape.forms or one.ends != cells[0].ends for one in cells):
        void = UNEVEN_DRAWS
    if void:
        return Finding("interaction", void=void, buffers=buffers)
    weights = [cell.weight for cell in cells]
    known = normalisers(cells)
    uneven = abs(float(SIGNS @ torch.tensor(weights, dtype=torch.float64))) > 1e-6 * sum(weights)
    return Finding(
        "interaction",
        over=max(_over(cells, weights), 1e9 if uneven else 0.0),
        normalised=_over(cells, known) if known is not None else None,
        losses=[cell.loss for cell in cells],
        weights=weights,
        buffers=buffers,
    )


def _over(cells: Sequence[Pass], weights: Sequence[float]) -> float:
    """The largest sum that should be zero, in units of its tolerance."""
    table = weigh(cells, weights)
    sums = (SIGNS @ table).abs()
    of_loss = float(table[:, 0].abs().sum())
    of_size = sum(weight * cell.size for weight, cell in zip(weights, cells, strict=True) if weight)
    epsilon, low = max(cell.epsilon for cell in cells), max(cell.low for cell in cells)
    loss_tolerance = TOLERANCE_EPSILONS * epsilon * of_loss + low / 8 * epsilon * of_size
    tolerance = TOLERANCE_EPSILONS * epsilon * (of_size + of_loss) + low * of_size
    return max(float(sums[0]) / (loss_tolerance + TINY), float(sums[1:].max()) / (tolerance + TINY))


def _differ(name: str, cells: Sequence[Pass]) -> bool:
    """Whether a buffer holds something else after another batch."""
    first, *others = (cell.buffers.get(name) for cell in cells)
    assert first is not None
    return any(one is None or one.shape != first.shape or not torch.equal(one, first) for one in others)
