"""The preflight of a job."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from cordee.core.errors import JobError
from cordee.feed.batch import Batch
from cordee.feed.order import Order
from cordee.feed.permute import Ids
from cordee.feed.source import Source
from cordee.group.team import Team
from cordee.train.fields import named_tensors, shapes
from cordee.train.job import Job
from cordee.train.metrics import tally_of
from cordee.train.misfit import misfit, said
from cordee.train.preflight.check import (
    FEW,
    POOL,
    SAMPLES,
    Verdict,
    check,
    first_pass,
    is_large,
    plainly_right,
    whole_of,
)
from cordee.train.preflight.fingerprint import fingerprint
from cordee.train.preflight.memory import key_of, remember, remembered
from cordee.train.preflight.passes import Pass, Passes
from cordee.train.preflight.samples import Samples, choose, digest, scannable
from cordee.train.preflight.verdict import unseen_weights

UNSTEADY = (
    "samples of the training data are others each time they are read, so the result depends on who reads them: they "
    "seem to draw from a generator of their own, or to change with what was read before. Let them draw from torch, "
    "random or np.random without a generator: there a sample draws the same in the same epoch, whoever reads it"
)


def before_training(job: Job, model: nn.Module, order: Order, team: Team, device: str) -> list[str]:
    """Look at the job's model, objective and data; returns what the user should know, raises what must not go on."""
    source: Source = job.data.train
    _materialise(job, model, source, _first_ids(order, 2), device)
    key = _key(job, model, order, device)
    if remembered(key, team):
        return []
    verdict = preflight(job, model, source, partial(_first_ids, order), device, team=team, largest=order.batch)
    steady = is_steady(source, _first_ids(order, SAMPLES))
    messages = [*verdict.messages(), *([] if steady else [UNSTEADY])]
    if not messages:
        remember(key)
    return messages


def _materialise(job: Job, model: nn.Module, source: Source, ids: Ids, device: str) -> None:
    """Let lazy modules take their shapes from a batch: parameters that are not there can be neither kept nor shared."""
    if not any(is_lazy(one) for one in (*model.parameters(), *model.buffers())):
        return
    batch = Samples(source, ids, device).batch(range(len(ids)))
    modes = [(module, module.training) for module in model.modules()]
    try:
        job.compute(model.eval(), batch)  # in evaluation no running statistics move
    except Exception as error:
        raise misfit(error, model, batch) from error
    for module, training in modes:
        module.training = training


def _key(job: Job, model: nn.Module, order: Order, device: str) -> str | None:
    """What a verdict depends on: the functions, the model, the data, the kind of device."""
    source: Source = job.data.train
    functions = fingerprint([job.objective, job.loss, job.weigh, dict(job.metrics), model])
    if functions is None:
        return None
    usual = _first_ids(order, 2 * SAMPLES)
    pool = digest(source, choose(source, usual, len(usual)))
    return key_of([functions, source.fingerprint, pool, str(order.batch), torch.device(device).type])


def _first_ids(order: Order, count: int) -> Ids:
    """So many different samples, of the first steps."""
    steps = range(min(order.steps, count))
    ids = np.concatenate([order.ids(0, step, slice(0, min(count, order.size(step)))) for step in steps])
    return ids[np.sort(np.unique(ids, return_index=True)[1])][:count]


def preflight(
    job: Job,
    model: nn.Module,
    source: Source,
    ids_of: Callable[[int], Any],
    device: str = "cpu",
    *,
    team: Team | None = None,
    largest: int = SAMPLES,
) -> Verdict:
    """Raise `ModelError` or `MixingError` with an explanation; model, gradients and random state stay as they were.

    `ids_of(count)` gives the ids of some samples, `largest` is the batch of a step. All members of `team` call this.
    """
    usual: Ids = np.asarray(ids_of(POOL if largest > SAMPLES else 2 * SAMPLES), dtype=np.int64)
    functions = [one for one in (job.objective, job.loss, job.weigh) if one is not None]
    with Passes(lambda batch: job.compute(model, batch), [model], functions, job.weigh) as passes:
        samples = Samples(source, choose(source, usual, len(usual)), device)
        sizes = dict.fromkeys((min(FEW, largest), largest)) if is_large([model]) else ()
        for size in sizes:  # few passes of few samples may do
            places = whole_of(len(samples), size)
            samples, first = _first(job, source, passes, samples, usual, places)
            if plainly_right(passes, samples, first, places, team or Team()):
                return _told(job, first, Verdict(passes=passes.count))
        if not is_large([model]):
            samples, first = _first(job, source, passes, samples, usual, whole_of(len(samples), largest))
        verdict = check(passes, samples, first, team or Team(), largest=largest, weighed=job.weigh is not None)
        return _told(job, first, verdict)


def _first(
    job: Job, source: Source, passes: Passes, samples: Samples, usual: Ids, places: list[int]
) -> tuple[Samples, Pass]:
    """The first pass; and samples that show what its losses leave out or weigh, if the data has any."""
    batch = samples.batch(places)
    first = first_pass(passes, batch)
    _metrics_fit(job, first.output, batch)
    telling = dict.fromkeys(value for call in first.calls for value in call.telling_values)
    better = choose(source, usual, len(usual), telling) if job.weigh is None else samples.ids
    if not np.array_equal(better, samples.ids):
        samples = samples.others(better)
        first = first_pass(passes, samples.batch(places))
    return samples, first


def _told(job: Job, first: Pass, verdict: Verdict) -> Verdict:
    """The verdict, with what no sample could show."""
    if job.weigh is None and not scannable(job.data.train) and (told := unseen_weights(first)):
        verdict.warnings.append(told)
    return verdict


def is_steady(source: Source, ids: Ids) -> bool:
    """Whether samples are the same each time they are read, as far as these tell."""
    one, other = ([tensor for _, tensor in named_tensors(source.gather(ids))] for _ in range(2))
    return len(one) == len(other) and all(map(_alike, one, other))


def _alike(one: Tensor, other: Tensor) -> bool:
    same = torch.equal(one, other)
    return same or (one.is_floating_point() and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True))


def _metrics_fit(job: Job, output: object, batch: Batch) -> None:
    """Better now than after the first epoch."""
    for name, metric in job.metrics.items():
        if output is None:
            raise JobError(f"metric {name!r} needs the model's output: let objective return (loss, output)")
        target = job.target_of(batch)
        try:
            tally_of(name, metric).update(output, target)
        except JobError as error:  # names the metric already
            raise JobError(f"{error} (tried with {_tried(output, target)})") from error
        except Exception as error:
            raise JobError(f"metric {name!r} does not work with {_tried(output, target)}: {said(error)}") from error


def _tried(output: object, target: object) -> str:
    return f"output {shapes(output)}, target {shapes(target)}"
