"""The preflight of a loop of the user's own, with a batch that it has in hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import nn

from cordee.core.errors import UsageError
from cordee.feed.batch import Batch
from cordee.feed.reading import reading
from cordee.group.team import Team
from cordee.train.fields import shapes
from cordee.train.preflight.check import check, first_pass, whole_of
from cordee.train.preflight.passes import Passes
from cordee.train.preflight.samples import Samples
from cordee.train.preflight.verdict import unseen_weights


def check_batch(
    objective: Callable[[Batch], Any],
    batch: Batch,
    models: Sequence[nn.Module],
    weigh: Callable[[Batch], Any] | None = None,
) -> list[str]:
    """Judge `objective(batch)`, the loss, by the samples of a batch; returns what the user should know."""
    if not models:
        raise UsageError("check() needs the models that the objective computes with: call prepare(model) before it")

    def compute(part: Batch) -> tuple[Any, Any]:
        found = objective(part)
        return found if isinstance(found, tuple) else (found, None)

    samples = Samples(None, np.asarray(batch.ids), "cpu", whole=batch)
    if not samples.divisible:
        raise UsageError(
            f"check() cuts a batch into samples, but the tensors of this one differ in their first dimension: "
            f"{shapes(batch.fields)}"
        )
    functions = [objective, *([weigh] if weigh is not None else [])]
    # A loader that reads ahead waits meanwhile: its samples may draw from the generators that passes begin anew.
    with reading(), Passes(compute, models, functions, weigh) as passes:
        first = first_pass(passes, samples.batch(whole_of(len(samples), len(batch))))
        verdict = check(passes, samples, first, Team(), largest=len(batch), weighed=weigh is not None)
        if weigh is None and (told := unseen_weights(first)):
            verdict.warnings.append(told)
        return verdict.messages()
