"""From findings to a verdict: accepted, refused with a reason and a remedy, or not checkable."""

from __future__ import annotations

from collections.abc import Sequence

from cordee.core.errors import MixingError
from cordee.feed.batch import Batch
from cordee.train.misfit import broadcast
from cordee.train.preflight.findings import Finding
from cordee.train.preflight.normaliser import DEFAULT_IGNORED, Call, lines_to_add
from cordee.train.preflight.passes import Pass

USUAL_CAUSES = (
    "Usual causes: a loss that compares samples with each other (contrastive, pairwise): cordee.gather(tensor) gives "
    "it the rows of all workers; an output and a target of different shapes, (n, 1) and (n,), which are broadcast "
    "against each other; class weights or ignore_index, where the mean is over something else than samples (declare "
    "it: Job(weigh=lambda batch: ...)); a layer that uses statistics of its batch"
)
UNCHECKED = (
    "it could not be checked that shares of a batch add up to the whole: {why}. If the loss mixes samples, or is not a "
    "mean over them, several workers train something else than one does"
)


def refuse(findings: Sequence[Finding], first: Pass, batch: Batch, *, weighed: bool) -> None:
    """Raise `MixingError` if a finding that counts speaks against the objective."""
    against = [one for one in findings if one.wrong and one.trusted and one.test in ("interaction", "replay", "scale")]
    if not against:
        return
    replays = [one for one in findings if one.test == "replay" and not one.void]
    told = next((one for one in against if one.test == "replay"), None) or next(iter(replays), None)
    if any(one.test == "scale" for one in against):
        raise MixingError(
            "the loss is a sum, not a mean: what one sample adds to it grows with the batch. " + _EXPECTED_MEAN
        )
    if told is not None and told.is_sum and told.wrong:
        whole, one, other = told.losses[:3]
        raise MixingError(
            f"the loss is a sum, not a mean: {whole:.6g} for all samples, {one:.6g} and {other:.6g} for two parts. "
            + _EXPECTED_MEAN
        )
    per = "what `weigh` says" if weighed else "their samples"
    raise MixingError(
        f"the loss of a batch is not the mean of its parts, weighted by {per}: {_numbers(told)}\n"
        f"{cause(findings, first, batch, weighed=weighed)}.\n"
        "Shared over workers it would train something else than one process does. If you want that: preflight=False"
    )


_EXPECTED_MEAN = (
    "Cordée weighs shares by their samples and expects a mean: divide by the number of samples (reduction='mean')"
)


def _numbers(told: Finding | None) -> str:
    if told is None:
        return "a sample changes what others add to it."
    whole, added = told.losses[0], told.losses[3]
    return (
        f"{whole:.6g} for all samples together, {added:.6g} from two parts of {told.weights[1]:g} and "
        f"{told.weights[2]:g} (gradients differ by {told.gradient_off:.1%})."
    )


def cause(findings: Sequence[Finding], first: Pass, batch: Batch, *, weighed: bool) -> str:
    """What seems to be behind it."""
    spoken = [one for one in findings if one.test in ("interaction", "replay") and not one.void]
    explained = all(one.normalised is not None and one.normalised <= 1.0 for one in spoken if one.trusted)
    if spoken and explained and first.calls:
        return declare(first.calls, first.normaliser, batch)
    shapes = broadcast(first.output, batch)
    if shapes:
        return shapes
    mixing = any(one.wrong for one in spoken if one.test == "interaction")
    share = next((one.share for one in spoken if one.test == "replay" and one.wrong and one.share is not None), None)
    if not mixing and share is not None:
        return (
            f"It is a mean with other weights: the first part counts {share:.3g} of the whole. Declare what the loss "
            "divides by: Job(weigh=lambda batch: ...)"
        )
    return USUAL_CAUSES


def declare(calls: Sequence[Call], total: float | None, batch: Batch) -> str:
    """The line that declares what the loss divides by, if one is found that comes to the same number."""
    call = calls[0]
    what = "class weights" if call.weights is not None else f"ignore_index={call.ignored}"
    lines = [
        line for line, value in lines_to_add(call, batch) if total is not None and abs(value - total) <= 1e-5 * total
    ]
    line = lines[0] if lines else ("weights[batch.y].sum()" if call.weights else f"(batch.y != {call.ignored}).sum()")
    more = ", with the same `weights` that the loss is given" if call.weights is not None else ""
    over = "its mean is over something else than samples"
    return f"The loss has {what}: {over}. Add to the job: weigh=lambda batch: {line}{more}"


def unseen_weights(first: Pass) -> str:
    """For data that cannot be looked through: what may yet come of class weights, or of an ignored value."""
    for call in first.calls:
        if call.uneven:  # and nothing came of it
            continue
        if call.weights is not None:
            raise MixingError(
                "the loss has class weights: its mean is over something else than samples. Add to the job: "
                "weigh=lambda batch: weights[batch.y].sum(), with the same `weights` that the loss is given"
            )
        if call.ignored != DEFAULT_IGNORED:
            return (
                f"the loss has ignore_index={call.ignored}. No target of the samples that were checked is ignored. If "
                f"some are, the mean is over something else than samples; then add to the job: "
                f"weigh=lambda batch: (batch.y != {call.ignored}).sum()"
            )
    return ""
