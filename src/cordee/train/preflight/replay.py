"""R, the replay test: a batch computed whole equals its two parts, which are given their slice of what was drawn.

It sees what the interaction test cannot: sums, n - 1, normalisers that depend on draws. Where draws are shuffles or
cannot be seen, the parts draw something else than the whole, so that only a positive result counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cordee.feed.batch import Batch
from cordee.train.preflight.draws import LAYOUTS, ReplayFailed, Slice
from cordee.train.preflight.findings import MOST_BUFFERS, NOTHING, Finding, is_nothing, vector, weighed
from cordee.train.preflight.passes import Pass, Passes
from cordee.train.preflight.samples import Samples

LOSS_TOLERANCE, TOLERANCE = 1e-5, 1e-4


def replay(passes: Passes, samples: Samples, whole: Pass, places: Sequence[int], cut: int) -> Finding:
    """The batch of these places of the pool, of which `whole` is the pass, against its parts around `cut`."""
    if not whole.tape.draws and not whole.tape.shuffled and not whole.tape.unseen:
        parts = [passes.run(samples.batch(part)) for part in (places[:cut], places[cut:])]
        return compare(whole, parts, trusted=not any(one.tape.draws for one in parts))
    best: Finding | None = None
    batches = [samples.batch(places[:cut]), samples.batch(places[cut:])]
    calls: list[int] | None = None
    for layout in LAYOUTS:
        try:
            parts = _parts(passes, batches, whole, layout, calls)
            found = compare(whole, parts, trusted=not (whole.tape.shuffled or whole.tape.unseen))
        except ReplayFailed:
            found = None
        if found is not None and (best is None or (not found.is_sum, found.over) < (not best.is_sum, best.over)):
            best = found
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
        slice_ = Slice(whole.tape, count, start, start + len(batch), layout, calls[place] if calls else 0)
        parts.append(passes.run(batch, replay=slice_))
        start += len(batch)
    return parts


def compare(whole: Pass, parts: Sequence[Pass], *, trusted: bool = True) -> Finding:
    """Judge a whole and its two parts."""
    buffers = {name: _is_mean(name, whole, parts) for name in list(whole.buffers)[:MOST_BUFFERS]}
    if not all(one.finite or not one.weight for one in (whole, *parts)):
        return Finding("replay", void="the loss is not finite", trusted=trusted, buffers=buffers)
    if is_nothing((whole, *parts)):
        return Finding("replay", void=NOTHING, trusted=trusted, buffers=buffers)
    weights = [one.weight for one in (whole, *parts)]
    totals = [one.normaliser for one in (whole, *parts)]
    known = [total for total in totals if total is not None]
    of_whole, first, second = (torch.tensor(vector(one), dtype=torch.float64) for one in (whole, *parts))
    norm = float(of_whole.norm()) or 1.0
    added = _added(parts, weights[1:])
    return Finding(
        "replay",
        over=_over(whole, parts, weights),
        normalised=_over(whole, parts, known) if len(known) == 3 and any(known) else None,
        trusted=trusted,
        losses=(whole.loss, *(one.loss for one in parts), float(added[0])),
        weights=tuple(weights),
        gradient_off=float((of_whole - added)[1:].norm()) / (float(of_whole[1:].norm()) + 1e-12),
        is_sum=float((of_whole - first - second).norm()) < 1e-3 * norm,
        share=_share(of_whole, first, second),
        buffers=buffers,
    )


def _added(parts: Sequence[Pass], weights: Sequence[float]) -> torch.Tensor:
    """What the parts come to together."""
    rows = [weighed(*pair) for pair in zip(parts, weights, strict=True)]
    return torch.tensor(rows, dtype=torch.float64).sum(0) / (sum(weights) or 1.0)


def _over(whole: Pass, parts: Sequence[Pass], weights: Sequence[float]) -> float:
    """The largest error in units of its tolerance; a weight that does not add up is one too."""
    total = weights[1] + weights[2]
    if not total or not weights[0]:
        return 0.0 if total == weights[0] else 1e9
    off = (torch.tensor(vector(whole), dtype=torch.float64) - _added(parts, weights[1:])).abs()
    all_three = (whole, *parts)
    low, epsilon = max(one.low for one in all_three), max(one.epsilon for one in all_three)
    loss = max(abs(one.loss) for one in all_three if one.finite)
    size = max(one.size for one in all_three if one.finite)
    of_loss = max(LOSS_TOLERANCE, 8 * low, 8 * epsilon) * loss + 64 * epsilon * size
    of_rest = max(TOLERANCE, 16 * low, 16 * epsilon) * (size + 1e-3 * loss)
    tiny = 1e-300
    errors = [float(off[0]) / (of_loss + tiny), float(off[1:].max()) / (of_rest + tiny)]
    return max(*errors, abs(weights[0] - total) / (1e-6 * total))


def _share(whole: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> float | None:
    """The weight of the first part, if the whole is a weighted mean of the two."""
    apart = first - second
    if not float(apart.norm()):
        return None
    share = float((whole - second) @ apart) / float(apart @ apart)
    rest = float((whole - share * first - (1 - share) * second).norm())
    return share if rest <= 1e-4 * (float(whole.norm()) or 1.0) and 0.0 <= share <= 1.0 else None


def _is_mean(name: str, whole: Pass, parts: Sequence[Pass]) -> bool:
    """Whether what a batch leaves in a buffer is the mean of what its parts leave there, by samples."""
    held = [one.buffers.get(name) for one in (whole, *parts)]
    if any(one is None or one.shape != held[0].shape or not one.is_floating_point() for one in held):  # type: ignore[union-attr]
        return False
    of_whole, first, second = (one.double() for one in held if one is not None)
    count = [one.samples for one in parts]
    mean = (count[0] * first + count[1] * second) / sum(count)
    return bool(torch.allclose(of_whole, mean, rtol=1e-4, atol=1e-5 * float(of_whole.abs().max())))
