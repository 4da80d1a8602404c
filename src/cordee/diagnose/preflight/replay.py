"""R, the replay test: a batch computed whole equals its two parts, which are given their slice of what was drawn.

It sees what the interaction test cannot: sums, n - 1, normalisers that depend on draws. Where draws are shuffles or
cannot be seen, the parts draw something else than the whole, so that only a positive result counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor

from cordee.diagnose.preflight.draws import LAYOUTS, ReplayFailed, Slice
from cordee.diagnose.preflight.passes import Pass, Passes
from cordee.diagnose.preflight.samples import Samples
from cordee.diagnose.preflight.trials import MOST_BUFFERS, TINY, Finding, find_normalisers, weigh, why_void
from cordee.feed.batch import Batch

LOSS_TOLERANCE, TOLERANCE = 1e-5, 1e-4


def try_replay(passes: Passes, samples: Samples, whole: Pass, places: Sequence[int], cut: int) -> Finding:
    """The batch of these places of the pool, of which `whole` is the pass, against its parts around `cut`."""
    batches = [samples.batch(places[:cut]), samples.batch(places[cut:])]
    trusted = not (whole.tape.shuffled or whole.tape.unseen)
    if trusted and not whole.tape.draws:
        parts = [passes.run(batch) for batch in batches]
        return compare(whole, parts, trusted=not any(one.tape.draws for one in parts))
    best: Finding | None = None
    calls: list[int] | None = None
    for layout in LAYOUTS:
        with contextlib.suppress(ReplayFailed):
            finding = compare(whole, _parts(passes, batches, whole, layout, calls), trusted=trusted)
            if best is None or (not finding.is_sum, finding.over) < (not best.is_sum, best.over):
                best = finding
        if best is not None and best.right:
            return best
        if layout == LAYOUTS[1]:  # the last one needs to know how often the parts draw by themselves
            own = [passes.run(batch) for batch in batches]
            calls = [len(one.tape.draws) for one in own]
            apart = compare(whole, own, trusted=False)  # as for draws that do not matter
            if best is None or apart.right:
                best = apart
            if len({*calls, len(whole.tape.draws)}) == 1:
                break
    assert best is not None
    return best


def _parts(
    passes: Passes, batches: Sequence[Batch], whole: Pass, layout: str, calls: Sequence[int] | None
) -> list[Pass]:
    """Both parts with their slices of what the whole has drawn."""
    parts, start, count = [], 0, sum(map(len, batches))
    for place, batch in enumerate(batches):
        part = Slice(whole.tape, count, start, start + len(batch), layout, calls[place] if calls else 0)
        parts.append(passes.run(batch, replay=part))
        start += len(batch)
    return parts


def compare(whole: Pass, parts: Sequence[Pass], *, trusted: bool = True) -> Finding:
    """Judge a whole and its two parts."""
    all_three = (whole, *parts)
    buffers = {name: _is_mean(name, all_three) for name in list(whole.buffers)[:MOST_BUFFERS]}
    if void := why_void(all_three):
        return Finding("replay", void=void, trusted=trusted, buffers=buffers)
    weights = [one.weight for one in all_three]
    known = find_normalisers(all_three)
    vector, (first, second) = whole.vector, (part.vector for part in parts)
    added = _added(parts, weights[1:])
    return Finding(
        "replay",
        over=_over(all_three, weights),
        normalised=_over(all_three, known) if known is not None and any(known) else None,
        trusted=trusted,
        losses=[*(one.loss for one in all_three), float(added[0])],
        weights=weights,
        gradient_off=float((vector - added)[1:].norm()) / (float(vector[1:].norm()) + 1e-12),
        is_sum=float((vector - first - second).norm()) < 1e-3 * (float(vector.norm()) or 1.0),
        share=_share(vector, first, second),
        buffers=buffers,
    )


def _added(parts: Sequence[Pass], weights: Sequence[float]) -> Tensor:
    """The mean of the parts by these weights."""
    return weigh(parts, weights).sum(0) / (sum(weights) or 1.0)


def _over(all_three: Sequence[Pass], weights: Sequence[float]) -> float:
    """The largest error in units of its tolerance; a weight that does not add up is one too."""
    total = weights[1] + weights[2]
    if not total or not weights[0]:
        return 0.0 if total == weights[0] else 1e9
    off = (all_three[0].vector - _added(all_three[1:], weights[1:])).abs()
    low, epsilon = max(one.low for one in all_three), max(one.epsilon for one in all_three)
    loss = max(abs(one.loss) for one in all_three if one.finite)
    size = max(one.size for one in all_three if one.finite)
    of_loss = max(LOSS_TOLERANCE, 8 * low, 8 * epsilon) * loss + 64 * epsilon * size
    of_rest = max(TOLERANCE, 16 * low, 16 * epsilon) * (size + 1e-3 * loss)
    errors = [float(off[0]) / (of_loss + TINY), float(off[1:].max()) / (of_rest + TINY)]
    return max(*errors, abs(weights[0] - total) / (1e-6 * total))


def _share(whole: Tensor, first: Tensor, second: Tensor) -> float | None:
    """The weight of the first part, if the whole is a weighted mean of the two."""
    apart = first - second
    if not float(apart.norm()):
        return None
    share = float((whole - second) @ apart) / float(apart @ apart)
    rest = float((whole - share * first - (1 - share) * second).norm())
    return share if rest <= 1e-4 * (float(whole.norm()) or 1.0) and 0.0 <= share <= 1.0 else None


def _is_mean(name: str, all_three: Sequence[Pass]) -> bool:
    """Whether what a batch leaves in a buffer is the mean of what its parts leave there, by samples."""
    left = [one.buffers.get(name) for one in all_three]
    values = [one.double() for one in left if one is not None and one.is_floating_point()]
    if len({one.shape for one in values}) != 1 or len(values) < len(left):
        return False
    count = [one.samples for one in all_three[1:]]
    mean = (count[0] * values[1] + count[1] * values[2]) / sum(count)
    return bool(torch.allclose(values[0], mean, rtol=1e-4, atol=1e-5 * float(values[0].abs().max())))
