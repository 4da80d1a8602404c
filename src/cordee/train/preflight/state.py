"""Whether an objective keeps state from its batches: what it leaves behind, and whether later losses depend on it.

A counter or a log changes at every pass and harms nothing. A centre, a queue or a codebook that is computed from the
batch is another one on every worker, as each sees its share only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cordee.core.errors import MixingError
from cordee.train.preflight.findings import Finding, vector
from cordee.train.preflight.passes import Pass, Passes
from cordee.train.preflight.samples import Samples


def repeated(passes: Passes, samples: Samples, places: Sequence[int], first: Pass) -> Finding:
    """The same batch once more: whatever is not within reach shows itself by another loss."""
    again = passes.run(samples.batch(places))
    return Finding("repeat", over=_apart(first, again), trusted=False)


def aftermath(passes: Passes, samples: Samples, names: Sequence[str]) -> Finding:
    """The same batch after two different ones: later losses must not depend on which of them it was."""
    half = min(8, len(samples) // 2)
    if not names or not half:
        return Finding("state", void="no state")
    ends = []
    for before in (range(half), range(half, 2 * half)):
        passes.run(samples.batch(list(before)))
        ends.append(passes.run(samples.batch(list(range(half))), go_on=True))
    return Finding("state", over=_apart(*ends), state=", ".join(names)[:500])


def batch_buffers(findings: Sequence[Finding]) -> dict[str, bool]:
    """The buffers that depend on the batch, each with whether its update is a mean over samples."""
    dependent = {name for one in findings if one.test == "interaction" for name in one.buffers}
    replays = [one.buffers for one in findings if one.test == "replay"]
    return {name: all(one.get(name, False) for one in replays) for name in sorted(dependent)}


def refuse_buffers(buffers: Mapping[str, bool]) -> None:
    """Refuse those whose shares cannot be put together."""
    names = [name for name, mean in buffers.items() if not mean]
    if names:
        raise MixingError(
            f"the forward pass updates {_listed(names)} from its batch, and the update is not a mean over samples: "
            "each worker would keep another one, made of its own share. Make the update a mean over the batch, or "
            "compute it from the global batch: cordee.gather(tensor) gives the rows of all workers. To train with "
            "state that differs from worker to worker: preflight=False"
        )


def refuse_state(findings: Sequence[Finding]) -> None:
    """Refuse state outside of buffers that later losses depend on."""
    for finding in findings:
        if finding.test != "state" or not finding.wrong:
            continue
        raise MixingError(
            f"the objective keeps state from its batches ({finding.state}), and later losses depend on it: each worker "
            "would keep another one, made of its own share. Compute it from the global batch with "
            "cordee.gather(tensor), or keep it as a buffer of the model whose update is a mean over the batch. To "
            "train with state that differs from worker to worker: preflight=False"
        )


def _apart(one: Pass, other: Pass) -> float:
    """How much two passes differ, in units of what rounding explains."""
    if not (one.finite and other.finite):
        return 0.0
    pairs = list(zip(vector(one), vector(other), strict=True))
    scale = abs(one.loss) + one.size
    tolerance = max(1e-6, 8 * one.epsilon, 8 * one.low) * scale
    return max(abs(left - right) for left, right in pairs) / (tolerance + 1e-300)


def _listed(names: Sequence[str]) -> str:
    return ("the buffer " if len(names) == 1 else "the buffers ") + ", ".join(map(repr, names))
