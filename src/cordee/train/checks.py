"""A job as the checks before its first step see it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

from cordee.core.errors import JobError
from cordee.diagnose.misfit import describe_error
from cordee.diagnose.preflight import check
from cordee.diagnose.preflight.passes import Subject
from cordee.feed.batch import Batch, shapes, target_of
from cordee.train.gathering import count_calls
from cordee.train.job import Job
from cordee.train.metrics import tally_of

check_loss = partial(check.check_batch, count_gathers=count_calls)
"""The preflight of a loss that a loop of the user's own computes."""


def subject_of(job: Job, model: nn.Module) -> Subject:
    """What the preflight needs of a job: how it computes, and the user's functions that it computes with."""
    return Subject(
        compute=partial(job.compute, model),
        models=(model,),
        functions=[one for one in (job.objective, job.loss) if one is not None],
        weigh=job.weigh,
        try_output=partial(try_metrics, dict(job.metrics), job.target),
        count_gathers=count_calls,
    )


def try_metrics(metrics: Mapping[str, Any], target_name: str | int | None, output: object, batch: Batch) -> None:
    """Refuse a metric that does not take what the model gives: better now than after the first epoch."""
    for name, metric in metrics.items():
        if output is None:
            raise JobError(f"metric {name!r} needs the model's output: let objective return (loss, output)")
        target = target_of(batch, target_name)
        tried = f"output {shapes(output)}, target {shapes(target)}"
        try:
            tally_of(name, metric).update(output, target)
        except JobError as error:  # names the metric already
            raise JobError(f"{error} (tried with {tried})") from error
        except Exception as error:
            raise JobError(f"metric {name!r} does not work with {tried}: {describe_error(error)}") from error
