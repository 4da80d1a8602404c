"""The preflight from beginning to end: a first pass, tests spread over the workers, and a verdict.

Every test compares passes of one worker with each other, so that workers may differ in rounding, or in weights that
are not yet shared. A test is done by one worker, and all of them know what it found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from cordee.core.errors import CordeeError, ModelError
from cordee.diagnose.preflight.passes import Pass, Passes
from cordee.diagnose.preflight.replay import try_replay
from cordee.diagnose.preflight.samples import Samples
from cordee.diagnose.preflight.trials import (
    UNEVEN_DRAWS,
    Finding,
    choose_sets,
    try_aftermath,
    try_interaction,
    try_repeat,
    try_scale,
)
from cordee.diagnose.preflight.verdict import (
    UNCHECKED,
    explain_unchecked,
    find_batch_buffers,
    refuse_mixing,
    refuse_state,
)
from cordee.feed.batch import Batch
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


class Test(NamedTuple):
    """One of the tests, and what it costs: the samples of its passes."""

    run: Callable[[], Finding]
    cost: int


@dataclass
class Verdict:
    """The result of the preflight for an objective that it accepts."""

    warnings: list[str] = field(default_factory=list)
    """What the user should know."""
    buffers: dict[str, bool] = field(default_factory=dict)
    """Buffers that a pass updates from its batch, each with whether the update is a mean over samples."""


def check(passes: Passes, samples: Samples, first: Pass, team: Team, *, largest: int) -> Verdict:
    """Judge an objective by tests with batches of up to `largest` samples. Raises `MixingError`."""
    places = choose_whole(len(samples), largest)
    if len(places) < 2 or first.gathers:  # what gathers mixes by declaration, over all workers
        return Verdict()
    size, count = min(SAMPLES, largest), len(places)
    tests = [
        Test(partial(try_interaction, passes, samples, size), 4 * size),
        Test(partial(try_interaction, passes, samples, 2), 4 * 2),
        Test(partial(try_repeat, passes, samples, places, first), count),
        Test(partial(try_aftermath, passes, samples, first.changed), 2 * count if first.changed else 0),
        *(Test(partial(try_replay, passes, samples, first, places, cut), count) for cut in choose_cuts(places)),
    ]
    findings = spread(tests, team)
    if any(one.void == UNEVEN_DRAWS for one in findings):  # which draw belongs to which sample is then a guess
        findings = [replace(one, trusted=False) if one.test == "replay" else one for one in findings]
    buffers = find_batch_buffers(findings)
    if any(one.test == "repeat" and one.over > 1.0 for one in findings):
        why = "the same batch gives another loss each time it is computed"
    else:
        replays = [one for one in findings if one.test == "replay" and one.wrong]
        if replays and not any(one.trusted for one in replays):
            findings += spread([Test(partial(try_scale, passes, samples, largest), 1)], team)
        refuse_state(findings, buffers)
        refuse_mixing(findings, first, samples.batch(places), weighed=passes.subject.weigh is not None)
        why = explain_unchecked(findings)
    return Verdict([UNCHECKED.format(why=why)] if why else [], buffers)


def is_plainly_right(passes: Passes, samples: Samples, first: Pass, places: list[int], team: Team) -> bool:
    """Whether few passes show that an objective is right, as for most large models; False: not by these.

    Of `first`, that of the samples at `places`. Where nothing is drawn, a few samples and their parts tell. Where it
    draws, few samples may have drawn alike by chance: it takes more of them, more cuts, and the interaction test.
    """
    tape = first.tape
    if len(places) < 2 or first.gathers or first.buffers or first.changed or tape.shuffled or tape.unseen:
        return False
    few = len(places) <= FEW
    if few and tape.draws:
        return False
    cuts = choose_cuts(places)[: team.replicas if few else None]  # one would do; what costs no time comes with it
    tests = [Test(partial(try_replay, passes, samples, first, places, cut), len(places)) for cut in cuts]
    if not few:
        tests.append(Test(partial(try_interaction, passes, samples, 2), 4 * 2))
    # None of them would be right if the same batch gave another loss each time.
    return all(one.right and one.trusted for one in spread(tests, team))


def choose_cuts(places: Sequence[int]) -> list[int]:
    """Behind which samples of a batch it is cut into two parts, one after the other."""
    return sorted({1, 3, 6} & set(range(1, len(places)))) if len(places) > FEW else [*range(1, len(places))] or [1]


def choose_whole(pool: int, largest: int) -> list[int]:
    """The places in the pool of the batch that is cut into parts: the first one of the interaction test."""
    most = min(SAMPLES, max(2, largest))
    sets = choose_sets(pool, most)
    return [*sets[0], *sets[2]] if sets is not None else list(range(min(pool, most)))


def is_large(models: Sequence[nn.Module]) -> bool:
    """Whether a pass of these models is expensive."""
    return sum(one.numel() for model in models for one in model.parameters()) > LARGE


def spread(tests: Sequence[Test], team: Team) -> list[Finding]:
    """Run every test on one of the workers; all get all findings. An error of the user's code is raised on all."""
    results: dict[int, Finding] = {}
    while True:
        table = torch.zeros(len(tests), ROOM_BYTES, dtype=torch.uint8)  # a sum over workers: all but one add zeros
        for place in share_out([test.cost for test in tests], team.replicas)[team.replica]:
            if place not in results:
                results[place] = _run(tests[place], alone=team.replicas == 1)
            raw = json.dumps(asdict(results[place])).encode()
            table[place, : len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        if team.agree([table]):  # otherwise a worker was lost, and what it did is done by another
            break
    findings = [Finding(**json.loads(bytes(row.tolist()).rstrip(b"\0"))) for row in table]
    for test, finding in zip(tests, findings, strict=True):
        if finding.error:
            test.run()  # fails here too, in the same words
            raise ModelError(finding.error)
    return findings


def share_out(costs: Sequence[int], workers: int) -> list[list[int]]:
    """Which tests each of the workers runs: the most expensive first, each by the worker with the least to do."""
    chosen: list[list[int]] = [[] for _ in range(workers)]
    for place in sorted(range(len(costs)), key=lambda at: -costs[at]):
        min(chosen, key=lambda places: sum(costs[at] + 1 for at in places)).append(place)
    return chosen


def _run(test: Test, *, alone: bool) -> Finding:
    try:
        return test.run()
    except CordeeError as error:
        if alone:
            raise
        return Finding("error", void="error", error=str(error)[:MOST_WORDS])


def first_pass(passes: Passes, batch: Batch) -> Pass:
    """One pass that shows what the objective does: its draws, its losses, its state and its output."""
    first = passes.run(batch, keep_output=True)
    if first.tape.fused:
        passes.plain_attention = True
        first = passes.run(batch, keep_output=True)
    return first
