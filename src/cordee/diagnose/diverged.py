"""Why a loss may not be a number: what can be the cause at this step, and whether the batch itself is."""

from __future__ import annotations

from cordee.core.errors import DivergedError
from cordee.feed.batch import Batch, named_tensors
from cordee.feed.feeder import Feeder
from cordee.feed.late import read
from cordee.feed.permute import Ids
from cordee.feed.source import Source

AT_ONCE = 64
"""Samples that are read at a time to look at them."""


def explain_divergence(loss: float, number: int, batch: Batch, feeder: Feeder | None) -> DivergedError:
    """The error for a step with this loss, after `number` others; `feeder`, if it is still there, has its data."""
    odd = ""
    if feeder is not None:
        feeder.close()  # from here on no thread reads the data
        odd = find_odd_samples(feeder.source, feeder.order.ids(batch.epoch, batch.step))
    in_loss = "a division by zero, or a log or root of zero or less, in the loss or the model"
    finite = "All numbers of its batch are finite. Usual causes:"
    if odd:
        why = f"The batch itself holds numbers that are not finite: {odd}. Fix the data"
    elif number == 0:
        why = f"No update came before it. {finite} {in_loss}; first weights that are too large"
    else:
        cure = "Try a smaller learning rate, or clip the gradient"
        why = f"{finite} a learning rate that is too high; {in_loss}. {cure}"
    return DivergedError(
        f"the loss of step {number + 1} (epoch {batch.epoch + 1}) is {loss}; the parameters are those before it. {why}"
    )


def find_odd_samples(source: Source, ids: Ids) -> str:
    """Which of these samples hold NaN or infinity, and in which field; empty if none does.

    Every worker looks at the whole global batch, so that all of them say the same.
    """
    rows = source.traits.rows  # of the data as the user gave it, before sets were held out
    odd: dict[str, list[int]] = {}
    for first in range(0, len(ids), AT_ONCE):
        part = ids[first : first + AT_ONCE]
        for name, tensor in named_tensors(read(source, part).fields):
            if tensor.is_floating_point() and tensor.dim() and len(tensor) == len(part):
                bad = ~tensor.isfinite().reshape(len(part), -1).all(1)
                odd.setdefault(name, []).extend((part if rows is None else rows[part])[bad.cpu().numpy()].tolist())
    return ", ".join(
        f"{name} of sample {min(samples)}{f' and {len(samples) - 1} more' if len(samples) > 1 else ''}"
        for name, samples in odd.items()
        if samples
    )
