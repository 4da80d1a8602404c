"""I, the interaction test: no sample may change what another one adds to the loss.

Sets a, a' stand at the first places of a batch, b, c at the others, and all four batches have one shape and one seed.
Then L(a, b) - L(a, c) - L(a', b) + L(a', c) is zero if no sample sees another one, whatever is drawn; so are
the same sums of gradients and of weights. It cannot see a sum in place of a mean: the shape is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from cordee.train.preflight.findings import MOST_BUFFERS, NOTHING, TOLERANCE_EPSILONS, Finding, is_nothing, weighed
from cordee.train.preflight.passes import Pass, Passes
from cordee.train.preflight.samples import Samples

UNEVEN_DRAWS = "its random draws depend on the data"
SIGNS = (1.0, -1.0, -1.0, 1.0)


def quadruple(pool: int, size: int) -> tuple[list[int], list[int], list[int], list[int]] | None:
    """Places in the pool of a, a', b and c for batches of `size`; None if there are too few samples."""
    size = min(size, pool // 2)
    if size < 2:
        return None
    first = 3 if size >= 6 else 1  # odd, and not half: pairs would not be seen otherwise
    ends = (0, first, 2 * first, first + size, 2 * size)
    return tuple(list(range(start, stop)) for start, stop in pairwise(ends))  # type: ignore[return-value]


def interaction(passes: Passes, samples: Samples, size: int) -> Finding:
    """Four passes, compared."""
    sets = quadruple(len(samples), size)
    if sets is None:
        return Finding("interaction", void="too few samples")
    a, other, b, c = sets
    pairs = [(a, b), (a, c), (other, b), (other, c)]
    return compare([passes.run(samples.batch([*one, *rest])) for one, rest in pairs])


def compare(cells: Sequence[Pass]) -> Finding:
    """Judge four passes, in the order of `SIGNS`."""
    buffers = {name: False for name in list(cells[0].buffers)[:MOST_BUFFERS] if _differ(name, cells)}
    if not all(cell.finite or not cell.weight for cell in cells):
        return Finding("interaction", void="the loss is not finite", buffers=buffers)
    if is_nothing(cells):
        return Finding("interaction", void=NOTHING, buffers=buffers)
    if any(cell.tape.forms != cells[0].tape.forms or cell.ends != cells[0].ends for cell in cells):
        return Finding("interaction", void=UNEVEN_DRAWS, buffers=buffers)
    weights = [cell.weight for cell in cells]
    totals = [cell.normaliser for cell in cells]
    known = [total for total in totals if total is not None]
    uneven = abs(sum(map(float.__mul__, SIGNS, weights))) > 1e-6 * sum(weights)
    return Finding(
        "interaction",
        over=max(_over(cells, weights), 1e9 if uneven else 0.0),
        normalised=_over(cells, known) if len(known) == len(cells) else None,
        losses=tuple(cell.loss for cell in cells),
        weights=tuple(weights),
        buffers=buffers,
    )


def _over(cells: Sequence[Pass], weights: Sequence[float]) -> float:
    """The largest sum that should be zero, in units of its tolerance."""
    table = torch.tensor([weighed(*pair) for pair in zip(cells, weights, strict=True)], dtype=torch.float64)
    sums = (torch.tensor(SIGNS, dtype=torch.float64) @ table).abs()
    of_loss = float(table[:, 0].abs().sum())
    of_size = sum(weight * cell.size for weight, cell in zip(weights, cells, strict=True) if weight)
    epsilon, low = max(cell.epsilon for cell in cells), max(cell.low for cell in cells)
    loss_tolerance = TOLERANCE_EPSILONS * epsilon * of_loss + low / 8 * epsilon * of_size
    tolerance = TOLERANCE_EPSILONS * epsilon * (of_size + of_loss) + low * of_size
    tiny = 1e-300
    return max(float(sums[0]) / (loss_tolerance + tiny), float(sums[1:].max()) / (tolerance + tiny))


def _differ(name: str, cells: Sequence[Pass]) -> bool:
    """Whether a buffer holds something else after another batch."""
    first = cells[0].buffers[name]
    others = [cell.buffers.get(name) for cell in cells[1:]]
    return any(one is None or one.shape != first.shape or not torch.equal(one, first) for one in others)
