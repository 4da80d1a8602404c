"""From findings to a verdict: accepted, refused with a reason and a remedy, or not checkable."""

from __future__ import annotations

from collections.abc import Sequence

from cordee.core.errors import MixingError
from cordee.diagnose.misfit import explain_broadcast
from cordee.diagnose.preflight.passes import Pass
from cordee.diagnose.preflight.trials import Finding
from cordee.diagnose.preflight.watch import DEFAULT_IGNORED
from cordee.feed.batch import Batch, named_tensors

USUAL_CAUSES = (
    "Usual causes: a loss that compares samples with each other (contrastive, pairwise): cordee.gather(tensor) gives "
    "it the rows of all workers; an output and a target of different shapes, (n, 1) and (n,), which are broadcast "
    "against each other; class weights or ignore_index, where the mean is over something else than samples (declare "
    "it: Job(weigh=lambda batch: ...)); a layer that uses statistics of its batch"
)
OTHER_MEAN = "its mean is over something else than samples"
DECLARE_WEIGHTS = (
    f"class weights: {OTHER_MEAN}. Add to the job: weigh=lambda batch: weights[batch.y].sum(), with the same `weights` "
    "and the same targets that the loss is given"
)
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
    if state := next((one.words for one in findings if one.test == "state" and one.wrong), ""):
        raise MixingError(
            f"the objective keeps state from its batches ({state}), and later losses depend on it: each worker "
            "would keep its own value, made from its share. Compute it from the global batch with "
            "cordee.gather(tensor), or keep it as a buffer of the model whose update is a mean over the batch. "
            + OWN_STATE
        )


def refuse_mixing(findings: Sequence[Finding], first: Pass, batch: Batch, *, weighed: bool) -> None:
    """Raise `MixingError` if a finding that counts speaks against the objective."""
    spoken = [one for one in findings if one.test in ("interaction", "replay", "scale") and not one.void]
    against = [one for one in spoken if one.wrong and one.trusted]
    if not against:
        return
    shown = next((one for one in (*against, *spoken) if one.words), against[0])
    if shown.is_sum and shown.wrong:
        raise MixingError(
            f"the loss is a sum, not a mean: {shown.words}. Cordée weighs shares by their samples and expects a mean: "
            "divide by the number of samples (reduction='mean')"
        )
    per = "what `weigh` says" if weighed else "their samples"
    raise MixingError(
        f"the loss of a batch is not the mean of its parts, weighted by {per}: "
        f"{shown.words or 'a sample changes what others add to it'}.\n{_explain(first, batch, weighed)}.\n"
        "Several workers would not train the same model as one process does. If you want that: preflight=False"
    )


def _explain(first: Pass, batch: Batch, weighed: bool) -> str:
    """The probable cause, and what to do about it."""
    uneven = next((one for one in first.tape.calls if one.uneven and not weighed), None)
    if uneven is None:
        return explain_broadcast(first.output, batch) or USUAL_CAUSES
    if uneven.weights is not None:
        return f"The loss has {DECLARE_WEIGHTS}"
    # Of all fields, and of all but their first tokens: which have as many targets as the loss divided by?
    fields = {_spelt(name): one for name, one in named_tensors(batch.fields) if not one.is_floating_point()}
    fields |= {f"{line}[:, 1:]": one[:, 1:] for line, one in fields.items() if one.dim() > 1}
    counts = {line: int((one != uneven.ignored).sum()) for line, one in fields.items()}
    line = next((line for line, count in counts.items() if count == uneven.total), "batch.y")
    declared = f"weigh=lambda batch: ({line} != {uneven.ignored}).sum()"
    return f"The loss has ignore_index={uneven.ignored}: {OTHER_MEAN}. Add to the job: {declared}"


def _spelt(name: str) -> str:
    """How a field of a batch is written."""
    if name in ("x", "y"):
        return f"batch.{name}"
    if name.startswith("field "):
        place = int(name.split()[1])
        return ("batch.x", "batch.y")[place] if place < 2 else f"batch.fields[{place}]"
    return "batch.fields" + "".join(f"[{int(part)}]" if part.isdigit() else f'["{part}"]' for part in name.split("."))


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
    for call in first.tape.calls:
        if call.uneven:  # and it made no difference
            continue
        if call.weights is not None:
            raise MixingError(f"the loss has {DECLARE_WEIGHTS}")
        if call.ignored != DEFAULT_IGNORED:
            return [
                f"the loss has ignore_index={call.ignored}. No target of the samples that were checked is ignored. If "
                f"some are, the mean is over something else than samples; then add to the job: "
                f"weigh=lambda batch: (batch.y != {call.ignored}).sum()"
            ]
    return []
