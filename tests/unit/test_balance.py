"""Shares by speed, as a value."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cordee.core.errors import PlanError
from cordee.core.events import SharesEvent
from cordee.core.plan import Plan
from cordee.feed.balance import balance
from cordee.feed.order import Order
from cordee.feed.share import Share, Shares
from cordee.train.balancing import Balancing
from cordee.watch.words import tell


@pytest.mark.parametrize(
    ("sizes", "seconds", "batch", "after"),
    [
        ((16, 16, 16), (1.0, 4.0, 1.0), 48, (22, 5, 21)),
        ((21, 6, 21), (1.3, 1.4, 1.3), 48, None),  # as even as 48 samples allow
        ((16, 16, 16), (1.0, 1.02, 1.0), 48, None),
        ((1, 1), (1.0, 100.0), 2, None),  # one sample for each
        ((5, 5), (1.0, 1000.0), 10, (9, 1)),
        ((9, 1), (9.0, 1.0), 10, (5, 5)),
        ((9, 1), (0.9, 0.9), 10, None),  # one sample takes as long there as nine here
        ((0, 3), (0.0, 1.0), 3, (1, 2)),  # nothing is known of the first: it gets a sample, and is measured
        ((0, 40), (0.0, 1.0), 40, (1, 39)),
        ((1, 2), (0.0, 1.0), 3, None),  # it was not measured yet
        ((2, 1, 0, 0), (1.0, 1.0, 0.0, 0.0), 3, None),
        ((100, 100), (3.0, 1.0), 200, (50, 150)),
    ],
)
def test_all_take_equally_long(
    sizes: tuple[int, ...], seconds: tuple[float, ...], batch: int, after: tuple[int, ...] | None
) -> None:
    share = balance(sizes, seconds, batch, range(len(sizes)))
    owners = tuple(range(len(sizes)))
    cut = share and tuple(len(share.positions(batch, owners, index)) for index in owners)
    assert cut == after


def test_proportions_belong_to_the_numbers_of_the_workers() -> None:
    share = balance((10, 10), (1.0, 3.0), 20, (1, 4))
    assert share is not None and share.proportions == (0.0, 15.0, 0.0, 0.0, 5.0)


def test_many_slow_ones_get_a_sample_each() -> None:
    share = balance((10,) * 10, (0.1, *[100.0] * 9), 100, range(10))
    assert share is not None and share.proportions == (91.0, *[1.0] * 9)


def test_a_rate_that_has_changed_is_uneven_once_three_steps_say_so() -> None:
    team = SimpleNamespace(slices=SimpleNamespace(rank=0), stages=SimpleNamespace(rank=0), sliced=False)
    stepper: Any = SimpleNamespace(plan=Plan(share="balanced"), team=team, done=5, device="cpu")
    stepper.loops = SimpleNamespace(open=[object()])
    stepper.reporter = SimpleNamespace(busy_s=0.0)
    balancing, loop = Balancing(stepper), SimpleNamespace(count=12)
    balancing._decided = 12.0
    said = []
    for stepper.reporter.busy_s in (1.0, 1.0, 1.0, 1.1, 1.3, 1.3):
        balancing.measure(loop)  # type: ignore[arg-type]
        said.append(balancing.uneven)
    assert said == [False] * 5 + [True]


def test_a_decision_that_was_due_within_a_loop_inside_is_made_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stepper: Any = SimpleNamespace(plan=Plan(share="balanced"), done=9, device="cpu", loops=SimpleNamespace(open=[1]))
    balancing, decided = Balancing(stepper), []
    monkeypatch.setattr(balancing, "_decide", lambda loop, done: decided.append(done))
    record: Any = SimpleNamespace(uneven=False)
    balancing._restart(0)
    balancing._due = 8  # that step was trained by a loop inside
    balancing.committed(SimpleNamespace(), record)  # type: ignore[arg-type]
    balancing._due = 0
    balancing.committed(SimpleNamespace(), record)  # type: ignore[arg-type]
    assert decided == [9]


@pytest.mark.parametrize(
    ("accumulate", "after"),
    [
        (1, [[22, 5, 21]]),
        (4, [[24, 4, 20]]),  # six, one and five of each micro-batch
        (12, []),  # two, one and one of each: as even as four samples allow. One that gets none is never measured again
    ],
)
def test_no_share_becomes_empty_in_all_micro_batches(accumulate: int, after: list[list[int]]) -> None:
    balancing, told = of_three(accumulate, lambda: [4.0, 1.0, 4.0])
    balancing._decide(LOOP, 3)
    assert [one.after for one in told] == after


LOOP: Any = SimpleNamespace(count=16)


def of_three(accumulate: int, rates: Callable[[], list[float]]) -> tuple[Balancing, list[SharesEvent]]:
    """That of the first of three workers which have these rates whenever they agree on them; and what it tells."""
    team = SimpleNamespace(shares=3, share=0, sliced=False)
    team.slices = team.stages = SimpleNamespace(rank=0)
    team.lines, team.membership = (
        SimpleNamespace(mesh=SimpleNamespace(numbers=(0, 1, 2))),
        SimpleNamespace(generation=1),
    )
    team.agree = lambda sums: [sums[0].copy_(torch.tensor(rates(), dtype=torch.float64))]
    stepper: Any = SimpleNamespace(plan=Plan(share="balanced", accumulate=accumulate), team=team, device="cpu", done=0)
    told: list[SharesEvent] = []
    stepper.reporter = SimpleNamespace(tell=told.append, busy_s=0.0)

    def cut(loop: Any, share: Share, first_step: int) -> None:
        loop.feeder.shares = Shares(((0, share),))

    stepper.loops = SimpleNamespace(open=[LOOP], begun=1, cut=cut)
    stepper.loops.current = lambda: (None, SimpleNamespace(epoch=0, step=stepper.done))
    LOOP.feeder = SimpleNamespace(order=Order(340, 48), shares=Shares(), accumulate=accumulate)
    return Balancing(stepper), told


def steps_of(balancing: Balancing, count: int, rate: Callable[[], float]) -> None:
    """So many steps, in each of which the first worker has another rate."""
    stepper: Any = balancing._stepper
    for _ in range(count):
        balancing.begin()
        stepper.reporter.busy_s = LOOP.count / rate()
        record: Any = SimpleNamespace(uneven=balancing.uneven)
        balancing.measure(LOOP)
        stepper.done += 1
        balancing.committed(LOOP, record)


@pytest.mark.parametrize("step_s", [0.001, 0.1])
def test_noise_alone_changes_shares_ever_more_seldom(step_s: float) -> None:
    noise = random.Random(0)
    drawn = lambda: 16 / step_s * noise.lognormvariate(0.0, 0.5)  # noqa: E731
    balancing, told = of_three(1, lambda: [drawn(), drawn(), drawn()])
    steps_of(balancing, 2000, lambda: 16 / step_s)
    assert 2 < len(told) < 30


def test_a_rate_is_never_between_two_speeds() -> None:
    balancing, told = of_three(1, lambda: [512.0, 512.0, 512.0])  # eight steps of 16 samples in a quarter of a second
    steps_of(balancing, 20, lambda: 512.0)
    assert balancing._length == 9 and told == []
    steps_of(balancing, 4, lambda: 256.0)
    assert not balancing.uneven
    steps_of(balancing, 1, lambda: 256.0)
    assert balancing.uneven


def test_a_change_of_speed_is_followed_at_once_also_after_many_changes() -> None:
    """By steps of a tenth of a second: after the second one by the slower rate, since three are measured."""
    noise, speed = random.Random(0), [160.0]
    balancing, told = of_three(1, lambda: [speed[0], *(160 * noise.lognormvariate(0.0, 0.5) for _ in range(2))])
    steps_of(balancing, 150, lambda: speed[0])
    speed[0] /= 3
    steps_of(balancing, 3, lambda: speed[0])
    assert told[-1].reason == "a replica's speed has changed" and told[-1].step == 155


def test_it_is_refused_where_the_time_of_computing_is_not_known() -> None:
    stepper: Any = SimpleNamespace(plan=Plan(share="balanced"), device="cuda:0")
    with pytest.raises(PlanError, match=r"not tried on GPUs yet.*proportions=2:1"):
        Balancing(stepper)
    Balancing(SimpleNamespace(plan=Plan(), device="cuda:0"))  # type: ignore[arg-type]


def test_a_change_in_words() -> None:
    event = SharesEvent(5, [0, 1], [24, 24], [38, 10], [1.0, 4.0], "the start")
    assert tell(event) == "shares from step 5 on: 24 : 24 → 38 : 10 samples (the start)"
