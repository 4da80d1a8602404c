"""The tests of the preflight, which compare passes, and their findings.

I, interaction: no sample may change what another one adds to the loss. Sets a, a' stand at the first places of a batch,
b, c at the others, and all four batches have one shape and one seed. Then L(a, b) - L(a, c) - L(a', b) + L(a', c) is
zero if no sample sees another one, whatever is drawn; so are the same sums of gradients and of weights. It cannot see
a sum in place of a mean: the shape is the same everywhere.

R, replay: a batch computed whole equals its two parts, which are given their slice of what was drawn. It sees sums,
n - 1, normalisers that depend on draws. Where draws are shuffles or cannot be seen, the parts draw something else than
the whole, so that only a positive result counts.

S, scale: what one sample adds, times the weight of its batch, must not grow with the batch. It is used only where draws
could not be replayed: it is statistical, and tells a sum from a mean, no more.

State: a counter or a log changes at every pass and harms nothing. A centre, a queue or a codebook that is computed from
the batch is another one on every worker, as each sees its share only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from cordee.diagnose.preflight.draws import LAYOUTS, ReplayFailed, Slice
from cordee.diagnose.preflight.passes import Pass, Passes

UNEVEN_DRAWS = "its random draws depend on the data"
SMALL, LARGE = 2, 32
"""Batches of the scale test."""
SEEDS = 8
MOST_GROWTH = 4.0
"""A mean stays below 3 for batches of 2 and 32, a sum is above 6."""
MOST_BUFFERS = 100
"""Buffers that a finding names."""
TINY = 1e-300
"""Added to tolerances, which may be zero."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one test: plain values, which travel between workers and are judged in one place."""

    test: str
    void: str = ""
    """Why the test says nothing; empty if it speaks."""
    over: float = 0.0
    """The largest error, in units of its tolerance: above 1 the shares of a batch do not add up."""
    trusted: bool = True
    """Whether errors count: draws that could not be replayed make errors of their own."""
    is_sum: bool = False
    buffers: dict[str, bool] = field(default_factory=dict)
    """Buffers that the pass updates from its batch: whether the update is a mean over samples."""
    words: str = ""
    """What is shown of it: numbers, the names of state that later losses depend on, or an error of the user's code."""

    @property
    def wrong(self) -> bool:
        """Whether the test speaks against the objective."""
        return not self.void and self.over > 1.0

    @property
    def right(self) -> bool:
        """Whether the test speaks for it."""
        return not self.void and self.over <= 1.0


def why_void(passes: Sequence[Pass]) -> str:
    """Why passes cannot be compared; empty if they can."""
    if not all(one.finite or not one.weight for one in passes):
        return "the loss is not finite"
    # A student that begins as a copy of its teacher, for instance.
    if all(max(abs(one.loss), one.size) <= 64 * one.tape.epsilon for one in passes if one.finite):
        return "the loss and its gradient are zero up to rounding"
    return ""


def weigh(passes: Sequence[Pass]) -> Tensor:
    """The vector of each pass times its weight; without weight there may be no number (0/0), and it counts nothing."""
    return torch.stack([one.weight * one.vector if one.weight else torch.zeros_like(one.vector) for one in passes])


def excess(
    passes: Sequence[Pass],
    signs: Sequence[float],
    *,
    floors: tuple[float, float] = (0.0, 0.0),
    lows: tuple[float, float],
    epsilons: float = 8.0,
) -> float:
    """How far these passes, each times its weight and sign, are from adding up to zero, in units of its tolerance.

    Allowed are `epsilons` of the number format, and for loss and gradient each: `lows` times the epsilon of a format
    below fp32, and at least `floors`. All of them are relative to the sum without signs. Weights have to add up too.
    """
    signed, weights = torch.tensor([[*signs], [one.weight for one in passes]], dtype=torch.float64)
    if abs(float(signed @ weights)) > 1e-6 * float(weights.sum()):
        return 1e9
    table = weigh(passes)
    errors = (signed @ table).abs()
    sizes = float(table[:, 0].abs().sum()), sum(one.weight * one.size for one in passes if one.weight)
    low = max(one.tape.low for one in passes)
    rounding = epsilons * max(one.tape.epsilon for one in passes) * sum(sizes) + TINY
    of_loss, of_gradient = (
        max(floor, factor * low) * size + rounding for floor, factor, size in zip(floors, lows, sizes, strict=True)
    )
    return max(float(errors[0]) / of_loss, float(errors[1:].max()) / of_gradient)


# ------------------------------------------------------------- interaction


def choose_sets(pool: int, size: int) -> list[list[int]] | None:
    """Places in the pool of a, a', b and c for batches of `size`; None if there are too few samples."""
    size = min(size, pool // 2)
    if size < 2:
        return None
    first = 3 if size >= 6 else 1  # odd, and not half: pairs would not be seen otherwise
    return [list(range(*ends)) for ends in pairwise((0, first, 2 * first, first + size, 2 * size))]


def try_interaction(passes: Passes, size: int) -> Finding:
    """Four passes, compared."""
    sets = choose_sets(len(passes.samples), size)
    if sets is None:
        return Finding("interaction", void="too few samples")
    cells = [passes.run([*first, *rest]) for first in sets[:2] for rest in sets[2:]]
    buffers = {name: False for name in list(cells[0].buffers)[:MOST_BUFFERS] if _differ(name, cells)}
    drawn = [([one.form for one in cell.tape.draws], cell.ends) for cell in cells]
    if void := why_void(cells) or (UNEVEN_DRAWS if any(one != drawn[0] for one in drawn) else ""):
        return Finding("interaction", void=void, buffers=buffers)
    # One shape and one seed: a format below fp32 rounds each sample as before, only sums over them differ.
    over = excess(cells, (1.0, -1.0, -1.0, 1.0), lows=(0.0, 1.0))
    return Finding("interaction", over=over, buffers=buffers)


def _differ(name: str, cells: Sequence[Pass]) -> bool:
    """Whether a buffer holds something else after another batch."""
    first = cells[0].buffers[name]
    return any(name not in one.buffers or not torch.equal(one.buffers[name], first) for one in cells[1:])


# ------------------------------------------------------------- replay


def try_replay(passes: Passes, whole: Pass, cut: int) -> Finding:
    """The batch of a pass against its parts around `cut`."""
    findings = []
    for finding in _replays(passes, whole, cut):
        if finding.right:
            return finding
        findings.append(finding)
    return min(findings, key=lambda one: (not one.trusted, not one.is_sum, one.over))


def _replays(passes: Passes, whole: Pass, cut: int) -> Iterator[Finding]:
    """One way after the other in which the parts may have their slices of what the whole has drawn."""
    tape, count = whole.tape, len(whole.places)
    trusted = not (tape.shuffled or tape.unseen)
    ends = [(0, cut), (cut, count)]
    calls = [0, 0]

    def replay(layout: str) -> Finding:
        slices = [Slice(tape.draws, count, *pair, layout, called) for pair, called in zip(ends, calls, strict=True)]
        parts = [passes.run(whole.places[one.start : one.stop], replay=one) for one in slices]
        return compare(whole, parts, trusted=trusted)

    if tape.draws or not trusted:
        for layout in LAYOUTS[:2]:
            with contextlib.suppress(ReplayFailed):
                yield replay(layout)
    own = [passes.run(whole.places[start:stop]) for start, stop in ends]  # for draws that do not matter
    calls = [len(one.tape.draws) for one in own]
    yield compare(whole, own, trusted=trusted and not tape.draws and not any(calls))
    if len({*calls, len(tape.draws)}) > 1:
        with contextlib.suppress(ReplayFailed):
            yield replay(LAYOUTS[2])


def compare(whole: Pass, parts: Sequence[Pass], *, trusted: bool = True) -> Finding:
    """Judge a whole and its two parts."""
    all_three = (whole, *parts)
    buffers = {name: _is_mean(name, all_three) for name in list(whole.buffers)[:MOST_BUFFERS]}
    if void := why_void(all_three):
        return Finding("replay", void=void, trusted=trusted, buffers=buffers)
    vector, (first, second) = whole.vector, (part.vector for part in parts)
    added = weigh(parts).sum(0) / (sum(part.weight for part in parts) or 1.0)
    is_sum = float((vector - first - second).norm()) < 1e-3 * (float(vector.norm()) or 1.0)
    if is_sum:
        words = f"{vector[0]:.6g} for all samples, {first[0]:.6g} and {second[0]:.6g} for two parts"
    else:
        off = float((vector - added)[1:].norm()) / (float(vector[1:].norm()) + 1e-12)
        words = f"{vector[0]:.6g} for all samples together, {added[0]:.6g} from two parts of {parts[0].weight:g} "
        words += f"and {parts[1].weight:g} (gradients differ by {off:.1%})"
    over = excess(all_three, (1.0, -1.0, -1.0), floors=(5e-6, 5e-5), lows=(4.0, 8.0), epsilons=32.0)
    return Finding("replay", over=over, trusted=trusted, is_sum=is_sum, buffers=buffers, words=words)


def _is_mean(name: str, all_three: Sequence[Pass]) -> bool:
    """Whether what a batch leaves in a buffer is the mean of what its parts leave there, by samples."""
    left = [one.buffers.get(name) for one in all_three]
    values = [one.double() for one in left if one is not None and one.is_floating_point()]
    if len({one.shape for one in values}) != 1 or len(values) < len(left):
        return False
    count = [len(one.places) for one in all_three[1:]]
    mean = (count[0] * values[1] + count[1] * values[2]) / sum(count)
    return bool(torch.allclose(values[0], mean, rtol=1e-4, atol=1e-5 * float(values[0].abs().max())))


# ------------------------------------------------------------- scale


def try_scale(passes: Passes, largest: int) -> Finding:
    """Swap one sample in small and in large batches."""
    large = min(LARGE, largest, len(passes.samples) - 1)
    if large < LARGE // 2:
        return Finding("scale", void="too few samples", trusted=False)
    small, big = (_change(passes, size) for size in (SMALL, large))
    if not small or big is None:
        return Finding("scale", void="the loss does not depend on its samples")
    over = big / small / MOST_GROWTH
    words = "what one sample adds to it grows with the batch" if over > 1.0 else ""
    return Finding("scale", over=over, is_sum=True, words=words)


def _change(passes: Passes, size: int) -> float | None:
    """The mean change of weight times loss and gradient when the first sample is swapped for another."""
    total = 0.0
    for seed in range(SEEDS):
        pair = [passes.run([first, *range(1, size)], seed=seed) for first in (0, len(passes.samples) - 1)]
        if not all(one.finite for one in pair):
            return None
        total += float(weigh(pair).diff(dim=0).abs().sum())
    return total / SEEDS


# ------------------------------------------------------------- state


def try_repeat(passes: Passes, first: Pass) -> Finding:
    """The same batch once more: state that is not within reach shows itself by another loss."""
    return Finding("repeat", over=_distance(first, passes.run(first.places)), trusted=False)


def try_aftermath(passes: Passes, names: Sequence[str]) -> Finding:
    """The same batch after two different ones: later losses must not depend on which of them it was."""
    half = min(8, len(passes.samples) // 2)
    if not names or not half:
        return Finding("state", void="no state")
    ends = []
    for before in (range(half), range(half, 2 * half)):
        passes.run(before)
        ends.append(passes.run(range(half), go_on=True))
    return Finding("state", over=_distance(*ends), words=", ".join(names)[:500])


def _distance(first: Pass, second: Pass) -> float:
    """How much two passes differ, in units of what rounding explains."""
    both = (first, second)
    return excess(both, (1.0, -1.0), lows=(4.0, 4.0)) if first.finite and second.finite else 0.0
