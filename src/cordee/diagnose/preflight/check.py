"""The preflight from beginning to end: samples, a first pass, tests spread over the workers, and a verdict.

Every test compares passes of one worker with each other, so that workers may differ in rounding, or in weights that
are not yet shared. A test is done by one worker, and all of them know what it found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from cordee.core.errors import CordeeError, ModelError, UsageError
from cordee.diagnose.misfit import explain_misfit
from cordee.diagnose.preflight.late import check_late
from cordee.diagnose.preflight.memory import fingerprint, is_remembered, make_key, remember
from cordee.diagnose.preflight.passes import Pass, Passes, Subject
from cordee.diagnose.preflight.samples import Samples, choose, digest_samples
from cordee.diagnose.preflight.trials import (
    UNEVEN_DRAWS,
    Finding,
    choose_sets,
    try_aftermath,
    try_interaction,
    try_repeat,
    try_replay,
    try_scale,
)
from cordee.diagnose.preflight.verdict import explain_unchecked, refuse_mixing, refuse_state, warn_of_unseen_weights
from cordee.feed.batch import Batch, shapes
from cordee.feed.order import Order
from cordee.feed.permute import Ids
from cordee.feed.reading import reading
from cordee.feed.source import Source
from cordee.group.team import Team

SAMPLES = 8
"""Of the larger batches of the tests."""
LARGE = 30_000_000
"""Parameters from which on a pass is expensive: few passes of few samples come first, and often suffice."""
FEW = 3
"""Samples of these; no part of them is half of the batch."""
POOL = 40
"""Samples that are read: two batches of the interaction test, or the one of the scale test."""
ROOM_BYTES = 32_768
"""For a finding on its way between workers."""
MOST_WORDS = 2_000

UNSTEADY = (
    "samples of the training data differ each time they are read, so the result depends on the worker that reads "
    "them. They seem to draw from a generator of their own, or to depend on what was read before. Draw from torch, "
    "random or np.random without a generator: then a sample draws the same in the same epoch, on any worker"
)

Test = Callable[[], Finding]


# ------------------------------------------------------------- the ways in


def before_training(subject: Subject, source: Source, order: Order, team: Team, device: str) -> list[str]:
    """Look at a job's model, objective and data; returns what the user should know, raises what must not go on."""
    key = None
    late = [one.function for one in source.traits.late]
    code = fingerprint([*subject.functions, subject.weigh, subject.try_output, *subject.models, *late])
    if code is not None:
        pool = digest_samples(source, choose(source, _first_ids(order, 2 * SAMPLES)))
        key = make_key([code, source.fingerprint, pool, str(order.batch), torch.device(device).type])
    if is_remembered(key, team):
        return []
    check_late(source, _first_ids(order, SAMPLES), device)
    gathers = subject.count_gathers()
    warnings = preflight(subject, source, partial(_first_ids, order), device, team=team, largest=order.batch)
    if len({digest_samples(source, _first_ids(order, SAMPLES)) for _ in range(2)}) > 1:
        warnings.append(UNSTEADY)
    if not warnings and subject.count_gathers() == gathers:  # sync=auto asks in every start whether a pass gathers
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
) -> list[str]:
    """Raise `ModelError` or `MixingError` with an explanation; model, gradients and random state stay as they were.

    `ids_of(count)` gives the ids of some samples, `largest` is the batch of a step. All members of `team` call this.
    """
    team = team or Team()
    usual: Ids = np.asarray(ids_of(POOL if largest > SAMPLES else 2 * SAMPLES), dtype=np.int64)
    large = sum(one.numel() for model in subject.models for one in model.parameters()) > LARGE
    with ExitStack() as stack:
        passes = Passes(subject, stack)
        passes.samples = Samples(source, choose(source, usual), device)
        for size in dict.fromkeys((min(FEW, largest), largest) if large else (largest,)):
            first = _run_first(passes, source, usual, size)
            if large and is_plainly_right(passes, first, team):  # few passes of few samples may do
                warnings = []
                break
        else:
            warnings = check(passes, first, team, largest=largest)
    if subject.weigh is None and source.traits.table is None:  # not all targets could be looked through
        warnings += warn_of_unseen_weights(first)
    return warnings


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
    with reading(), ExitStack() as stack:
        passes = Passes(Subject(compute, models, (objective,), weigh, count_gathers=count_gathers), stack)
        passes.samples = samples
        first = passes.run_first(choose_whole(len(samples), len(batch)))
        warnings = check(passes, first, Team(), largest=len(batch))
    return [*warnings, *(warn_of_unseen_weights(first) if weigh is None else ())]


def materialise(subject: Subject, source: Source, order: Order, device: str) -> None:
    """Let lazy modules take their shapes from a batch: parameters that do not exist yet cannot be kept or shared."""
    if not any(is_lazy(tensor) for one in subject.models for tensor in (*one.parameters(), *one.buffers())):
        return
    ids = _first_ids(order, 2)
    batch = Samples(source, ids, device).batch(range(len(ids)))
    modes = {module: module.training for model in subject.models for module in model.modules()}
    for module in modes:
        module.training = False  # in evaluation no running statistics move
    try:
        subject.compute(batch)
    except Exception as error:
        raise explain_misfit(error, subject.models[0], batch) from error
    for module, training in modes.items():
        module.training = training


def _first_ids(order: Order, count: int) -> Ids:
    """So many different samples, of the first steps."""
    # Twice as many hold enough different ones, or all that there are, also where one pass follows another.
    ids = order.span(0, range(min(order.steps, -(-2 * count // order.batch))))[: 2 * count]
    return ids[np.sort(np.unique(ids, return_index=True)[1])][:count]


def _run_first(passes: Passes, source: Source, usual: Ids, size: int) -> Pass:
    """The first pass; if the data has samples that show what its losses leave out or weigh, these come in."""
    subject, samples = passes.subject, passes.samples
    first = passes.run_first(choose_whole(len(samples), size))
    if subject.try_output is not None:
        subject.try_output(first.output, samples.batch(first.places))
    telling = dict.fromkeys(value for call in first.tape.calls for value in call.telling_values)
    better = choose(source, usual, telling) if subject.weigh is None else samples.ids
    if not np.array_equal(better, samples.ids):
        passes.samples = Samples(source, better, samples.device)
        first = passes.run_first(first.places)
    return first


# ------------------------------------------------------------- the tests


def check(passes: Passes, first: Pass, team: Team, *, largest: int) -> list[str]:
    """Judge an objective by tests with batches of up to `largest` samples. Raises `MixingError`."""
    if len(first.places) < 2 or first.gathers:  # what gathers mixes by declaration, over all workers
        return []
    replays = [partial(try_replay, passes, first, cut) for cut in choose_cuts(first)]
    tests: list[Test] = [
        *(partial(try_interaction, passes, size) for size in (min(SAMPLES, largest), 2)),
        partial(try_aftermath, passes, first.changed),
        *replays[:1],
        partial(try_repeat, passes, first),
        *replays[1:],
    ]
    findings = spread(tests, team)
    if any(one.void == UNEVEN_DRAWS for one in findings):  # which draw belongs to which sample is then a guess
        findings = [replace(one, trusted=False) if one.test == "replay" else one for one in findings]
    if not any(one.test == "repeat" and one.wrong for one in findings):
        doubts = [one for one in findings if one.test == "replay" and one.wrong]
        if doubts and not any(one.trusted for one in doubts):
            findings += spread([partial(try_scale, passes, largest)], team)
        refuse_state(findings)
        refuse_mixing(findings, first, passes.samples.batch(first.places), weighed=passes.subject.weigh is not None)
    return explain_unchecked(findings)


def is_plainly_right(passes: Passes, first: Pass, team: Team) -> bool:
    """Whether few passes show that an objective is right, as for most large models; False: not by these.

    Where nothing is drawn, a few samples and their parts tell. Where it draws, few samples may have drawn alike by
    chance: it takes more of them, more cuts, and the interaction test.
    """
    tape = first.tape
    few = len(first.places) <= FEW
    unsure = first.gathers or first.buffers or first.changed or tape.shuffled or tape.unseen or (few and tape.draws)
    if unsure or len(first.places) < 2:
        return False
    cuts = choose_cuts(first)[: team.shares if few else None]  # one would do; what costs no time comes with it
    tests: list[Test] = [partial(try_replay, passes, first, cut) for cut in cuts]
    if not few:
        tests.append(partial(try_interaction, passes, 2))
    # None of them would be right if the same batch gave another loss each time.
    return all(one.right and one.trusted for one in spread(tests, team))


def choose_cuts(whole: Pass) -> list[int]:
    """Behind which samples its batch is cut into two parts, one after the other."""
    return [cut for cut in ((1, 3, 6) if len(whole.places) > FEW else (1, 2)) if cut < len(whole.places)]


def choose_whole(pool: int, largest: int) -> list[int]:
    """The places in the pool of the batch that is cut into parts: the first one of the interaction test."""
    most = min(SAMPLES, max(2, largest))
    sets = choose_sets(pool, most)
    return [*sets[0], *sets[2]] if sets is not None else list(range(min(pool, most)))


def spread(tests: Sequence[Test], team: Team) -> list[Finding]:
    """Deal the tests to the workers; all get all findings. An error of the user's code is raised on all."""
    results: dict[int, Finding] = {}
    while True:
        table = torch.zeros(len(tests), ROOM_BYTES, dtype=torch.uint8)  # a sum over workers: all but one add zeros
        for place in range(team.share, len(tests), team.shares):
            try:
                results[place] = results.get(place) or tests[place]()
            except CordeeError as error:
                if team.shares == 1:
                    raise
                results[place] = Finding("error", words=str(error)[:MOST_WORDS])
            raw = json.dumps(asdict(results[place])).encode()
            table[place, : len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        if team.agree([table]):  # otherwise a worker was lost, and what it did is done by another
            break
    findings = [Finding(**json.loads(bytes(row.tolist()).rstrip(b"\0"))) for row in table]
    for one in findings:
        if one.test == "error":
            raise ModelError(one.words)
    return findings
