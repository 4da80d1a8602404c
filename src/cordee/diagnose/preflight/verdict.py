"""From findings to a verdict: accepted, refused with a reason and a remedy, or not checkable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from cordee.core.errors import MixingError
from cordee.diagnose.misfit import explain_broadcast
from cordee.diagnose.preflight.passes import Pass
from cordee.diagnose.preflight.trials import Finding
from cordee.diagnose.preflight.watch import DEFAULT_IGNORED, Call
from cordee.feed.batch import Batch
from cordee.feed.fields import named_tensors

EXPECTED_MEAN = (
    "Cordée weighs shares by their samples and expects a mean: divide by the number of samples (reduction='mean')"
)
USUAL_CAUSES = (
    "Usual causes: a loss that compares samples with each other (contrastive, pairwise): cordee.gather(tensor) gives "
    "it the rows of all workers; an output and a target of different shapes, (n, 1) and (n,), which are broadcast "
    "against each other; class weights or ignore_index, where the mean is over something else than samples (declare "
    "it: Job(weigh=lambda batch: ...)); a layer that uses statistics of its batch"
)
OTHER_MEAN = "its mean is over something else than samples"
OWN_STATE = "To train with state that differs from worker to worker: preflight=False"


def refuse_state(findings: Sequence[Finding]) -> None:
    """Refuse buffers whose shares cannot be put together, and other state that later losses depend on."""
    dependent = {name for one in findings if one.test == "interaction" for name in one.buffers}
    replays = [one.buffers for one in findings if one.test == "replay"]
    buffers = {name: all(one.get(name, False) for one in replays) for name in sorted(dependent)}
    if names := [repr(name) for name, is_mean in buffers.items() if not is_mean]:
        listed = f"the buffer{'s' if len(names) > 1 else ''} {', '.join(names)}"
        raise MixingError(
            f"the forward pass updates {listed} from its batch, and the update is not a mean over samples: "
            "each worker would keep its own value, made from its share. Make the update a mean over the batch, or "
            f"compute it from the global batch: cordee.gather(tensor) gives the rows of all workers. {OWN_STATE}"
        )
    if state := next((one.state for one in findings if one.test == "state" and one.wrong), ""):
        raise MixingError(
            f"the objective keeps state from its batches ({state}), and later losses depend on it: each worker "
            "would keep its own value, made from its share. Compute it from the global batch with "
            "cordee.gather(tensor), or keep it as a buffer of the model whose update is a mean over the batch. "
            + OWN_STATE
        )


def refuse_mixing(findings: Sequence[Finding], first: Pass, batch: Batch, *, weighed: bool) -> None:
    """Raise `MixingError` if a finding that counts speaks against the objective."""
    against = [one for one in findings if one.wrong and one.trusted and one.test in ("interaction", "replay", "scale")]
    if not against:
        return
    if any(one.test == "scale" for one in against):
        grows = "what one sample adds to it grows with the batch"
        raise MixingError(f"the loss is a sum, not a mean: {grows}. {EXPECTED_MEAN}")
    replays = [one for one in (*against, *findings) if one.test == "replay" and not one.void]
    numbers = "a sample changes what others add to it."
    if replays:
        shown = replays[0]
        whole, one, other, added = shown.losses
        if shown.is_sum and shown.wrong:
            raise MixingError(
                f"the loss is a sum, not a mean: {whole:.6g} for all samples, {one:.6g} and {other:.6g} for two parts. "
                + EXPECTED_MEAN
            )
        numbers = (
            f"{whole:.6g} for all samples together, {added:.6g} from two parts of {shown.weights[1]:g} and "
            f"{shown.weights[2]:g} (gradients differ by {shown.gradient_off:.1%})."
        )
    per = "what `weigh` says" if weighed else "their samples"
    raise MixingError(
        f"the loss of a batch is not the mean of its parts, weighted by {per}: {numbers}\n"
        f"{_explain(findings, first, batch)}.\n"
        "Several workers would not train the same model as one process does. If you want that: preflight=False"
    )


def _explain(findings: Sequence[Finding], first: Pass, batch: Batch) -> str:
    """The probable cause, and what to do about it."""
    spoken = [one for one in findings if one.test in ("interaction", "replay") and not one.void]
    normalised = all(one.normalised is not None and one.normalised <= 1.0 for one in spoken if one.trusted)
    if spoken and normalised and first.calls:
        return _declare(first.calls[0], first.normaliser, batch)
    if shapes := explain_broadcast(first.output, batch):
        return shapes
    mixing = any(one.wrong for one in spoken if one.test == "interaction")
    share = next((one.share for one in spoken if one.test == "replay" and one.wrong and one.share is not None), None)
    if not mixing and share is not None:
        return (
            f"It is a mean with other weights: the first part counts {share:.3g} of the whole. Declare what the loss "
            "divides by: Job(weigh=lambda batch: ...)"
        )
    return USUAL_CAUSES


def _declare(call: Call, total: float | None, batch: Batch) -> str:
    """The line that declares what the loss divides by, if one is found that comes to the same number."""
    ways = _lines_to_add(call, batch)
    lines = [line for line, value in ways if total is not None and abs(value - total) <= 1e-5 * total]
    if call.weights is None:
        line = (lines or [f"(batch.y != {call.ignored}).sum()"])[0]
        return f"The loss has ignore_index={call.ignored}: {OTHER_MEAN}. Add to the job: weigh=lambda batch: {line}"
    return f"The loss has {_declare_weights((lines or ['weights[batch.y].sum()'])[0])}"


def _lines_to_add(call: Call, batch: Batch) -> Iterator[tuple[str, float]]:
    """Ways to declare what a call divides by, each with what it comes to for this batch."""
    for name, tensor in named_tensors(batch.fields):
        if tensor.is_floating_point() or tensor.is_complex() or not tensor.dim():
            continue
        spelt = _spelt(name)
        for target_line, target in ((spelt, tensor), (f"{spelt}[:, 1:]", tensor[:, 1:] if tensor.dim() > 1 else None)):
            if target is None:
                continue
            counted = target != call.ignored
            if call.weights is None:
                yield f"({target_line} != {call.ignored}).sum()", float(counted.sum())
                continue
            inside = target[counted]
            if inside.numel() and (int(inside.min()) < 0 or int(inside.max()) >= len(call.weights)):
                continue
            table = torch.tensor(call.weights, dtype=torch.float64, device=target.device)
            all_count = bool(counted.all()) or (call.ignored == DEFAULT_IGNORED and bool((target >= 0).all()))
            chosen = target_line if all_count else f"{target_line}[{target_line} != {call.ignored}]"
            yield f"weights[{chosen}].sum()", float(table[inside.long()].sum())


def _spelt(name: str) -> str:
    """How a field of a batch is written."""
    if name in ("x", "y"):
        return f"batch.{name}"
    if name.startswith("field "):
        place = int(name.split()[1])
        return ("batch.x", "batch.y")[place] if place < 2 else f"batch.fields[{place}]"
    return "batch.fields" + "".join(f"[{int(part)}]" if part.isdigit() else f'["{part}"]' for part in name.split("."))


def _declare_weights(line: str) -> str:
    declared = f"weigh=lambda batch: {line}, with the same `weights` that the loss is given"
    return f"class weights: {OTHER_MEAN}. Add to the job: {declared}"


def explain_unchecked(findings: Sequence[Finding]) -> list[str]:
    """A warning if an objective that no finding speaks against is not known to be right."""
    kinds = {kind: [one for one in findings if one.test == kind] for kind in ("interaction", "replay", "scale")}
    if any(one.test == "repeat" and one.wrong for one in findings):
        why = "the same batch gives another loss each time it is computed"
    elif all(one.right for one in kinds["replay"]) or all(
        any(one.right for one in kinds[kind]) for kind in ("interaction", "scale")
    ):
        return []
    else:
        voids = (one.void for one in findings if one.void and one.test in kinds)
        why = next(voids, "its random draws could not be replayed")
    return [
        f"the preflight could not check that the shares of a batch add up to the whole: {why}. If the loss mixes "
        "samples, or is not a mean over them, several workers do not train the same model as one worker"
    ]


def warn_of_unseen_weights(first: Pass) -> list[str]:
    """For data that cannot be looked through: a warning of what an ignored value may yet do. Refuses class weights."""
    for call in first.calls:
        if call.uneven:  # and it made no difference
            continue
        if call.weights is not None:
            raise MixingError(f"the loss has {_declare_weights('weights[batch.y].sum()')}")
        if call.ignored != DEFAULT_IGNORED:
            return [
                f"the loss has ignore_index={call.ignored}. No target of the samples that were checked is ignored. If "
                f"some are, the mean is over something else than samples; then add to the job: "
                f"weigh=lambda batch: (batch.y != {call.ignored}).sum()"
            ]
    return []
