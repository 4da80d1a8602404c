"""The two ways into the preflight: with the data of a job, and with a batch of a loop of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from cordee.core.errors import UsageError
from cordee.diagnose.misfit import explain_misfit
from cordee.diagnose.preflight.check import (
    FEW,
    POOL,
    SAMPLES,
    Verdict,
    check,
    choose_whole,
    first_pass,
    is_large,
    is_plainly_right,
)
from cordee.diagnose.preflight.memory import fingerprint, is_remembered, make_key, remember
from cordee.diagnose.preflight.passes import Pass, Passes, Subject
from cordee.diagnose.preflight.samples import Samples, choose, digest_samples, is_scannable
from cordee.diagnose.preflight.verdict import warn_of_unseen_weights
from cordee.feed.batch import Batch
from cordee.feed.fields import shapes
from cordee.feed.order import Order
from cordee.feed.permute import Ids
from cordee.feed.reading import reading
from cordee.feed.source import Source
from cordee.group.team import Team

UNSTEADY = (
    "samples of the training data differ each time they are read, so the result depends on the worker that reads "
    "them. They seem to draw from a generator of their own, or to depend on what was read before. Draw from torch, "
    "random or np.random without a generator: then a sample draws the same in the same epoch, on any worker"
)


def before_training(subject: Subject, source: Source, order: Order, team: Team, device: str) -> list[str]:
    """Look at a job's model, objective and data; returns what the user should know, raises what must not go on."""
    key = _key(subject, source, order, device)
    if is_remembered(key, team):
        return []
    verdict = preflight(subject, source, partial(_first_ids, order), device, team=team, largest=order.batch)
    read_twice = {digest_samples(source, _first_ids(order, SAMPLES)) for _ in range(2)}
    warnings = [*verdict.warnings, *([UNSTEADY] if len(read_twice) > 1 else [])]
    if not warnings:
        remember(key)
    return warnings


def preflight(
    subject: Subject,
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
    team = team or Team()
    usual: Ids = np.asarray(ids_of(POOL if largest > SAMPLES else 2 * SAMPLES), dtype=np.int64)
    large = is_large(subject.models)
    with Passes(subject) as passes:
        samples = Samples(source, choose(source, usual), device)
        for size in dict.fromkeys((min(FEW, largest), largest) if large else (largest,)):
            places = choose_whole(len(samples), size)
            samples, first = _first(subject, passes, samples, usual, places)
            if large and is_plainly_right(passes, samples, first, places, team):  # few passes of few samples may do
                verdict = Verdict()
                break
        else:
            verdict = check(passes, samples, first, team, largest=largest)
    if subject.weigh is None and not is_scannable(source):
        verdict.warnings += warn_of_unseen_weights(first)
    return verdict


def check_batch(
    objective: Callable[[Batch], Any],
    batch: Batch,
    models: Sequence[nn.Module],
    weigh: Callable[[Batch], Any] | None = None,
    count_gathers: Callable[[], int] = lambda: 0,
) -> list[str]:
    """Judge `objective(batch)`, the loss, by the samples of a batch; returns what the user should know."""
    if not models:
        raise UsageError("check() needs the models that the objective computes with: call prepare(model) before it")

    def compute(part: Batch) -> tuple[Any, Any]:
        result = objective(part)
        return result if isinstance(result, tuple) else (result, None)

    samples = Samples(None, np.asarray(batch.ids), "cpu", whole=batch)
    if not samples.divisible:
        raise UsageError(
            f"check() cuts a batch into samples, but the tensors of this one differ in their first dimension: "
            f"{shapes(batch.fields)}"
        )
    # A loader that reads ahead waits meanwhile: its samples may draw from the generators that passes begin anew.
    with reading(), Passes(Subject(compute, models, (objective,), weigh, count_gathers=count_gathers)) as passes:
        first = first_pass(passes, samples.batch(choose_whole(len(samples), len(batch))))
        verdict = check(passes, samples, first, Team(), largest=len(batch))
    return [*verdict.warnings, *(warn_of_unseen_weights(first) if weigh is None else ())]


def materialise(subject: Subject, source: Source, order: Order, device: str) -> None:
    """Let lazy modules take their shapes from a batch: parameters that do not exist yet cannot be kept or shared."""
    modules = [module for model in subject.models for module in model.modules()]
    if not any(is_lazy(tensor) for one in subject.models for tensor in (*one.parameters(), *one.buffers())):
        return
    ids = _first_ids(order, 2)
    batch = Samples(source, ids, device).batch(range(len(ids)))
    modes = [module.training for module in modules]
    for module in modules:
        module.training = False  # in evaluation no running statistics move
    try:
        subject.compute(batch)
    except Exception as error:
        raise explain_misfit(error, subject.models[0], batch) from error
    for module, training in zip(modules, modes, strict=True):
        module.training = training


def _key(subject: Subject, source: Source, order: Order, device: str) -> str | None:
    """What a verdict depends on: the functions, the model, the data, the kind of device."""
    code = fingerprint([*subject.functions, subject.weigh, subject.try_output, *subject.models])
    if code is None:
        return None
    pool = digest_samples(source, choose(source, _first_ids(order, 2 * SAMPLES)))
    return make_key([code, source.fingerprint, pool, str(order.batch), torch.device(device).type])


def _first_ids(order: Order, count: int) -> Ids:
    """So many different samples, of the first steps."""
    # Twice as many hold enough different ones, or all that there are, also where one pass follows another.
    ids = order.span(0, range(min(order.steps, -(-2 * count // order.batch))))[: 2 * count]
    return ids[np.sort(np.unique(ids, return_index=True)[1])][:count]


def _first(
    subject: Subject, passes: Passes, samples: Samples, usual: Ids, places: Sequence[int]
) -> tuple[Samples, Pass]:
    """The first pass; and samples that show what its losses leave out or weigh, if the data has any."""
    batch = samples.batch(places)
    first = first_pass(passes, batch)
    if subject.try_output is not None:
        subject.try_output(first.output, batch)
    telling = dict.fromkeys(value for call in first.calls for value in call.telling_values)
    assert samples.source is not None
    better = choose(samples.source, usual, telling) if subject.weigh is None else samples.ids
    if not np.array_equal(better, samples.ids):
        samples = Samples(samples.source, better, samples.device)
        first = first_pass(passes, samples.batch(places))
    return samples, first
