"""Local steps whose merges are left behind, beside the formula: replicas are threads, and meet at a table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cordee.core.errors import UsageError
from cordee.core.record import Record
from cordee.core.window import InHand
from cordee.group.team import Team
from cordee.group.transport.seam import Transport
from cordee.sync.local import PULL, LocalSteps, Outer
from cordee.sync.lossy import CODECS, Exact, Lossy
from cordee.sync.seam import Treatment
from exchange import exchange

REPLICAS = 3
RATE = 0.1
WAITS_S = 60.0


class Meeting:
    """Where threads lay what they add up or gather: the n-th of one meets the n-th of all others."""

    def __init__(self) -> None:
        self.laid: dict[tuple[int, int], Tensor] = {}
        self.turn = threading.Condition()

    def lay(self, number: int, rank: int, tensor: Tensor) -> None:
        with self.turn:
            self.laid[number, rank] = tensor.clone()
            self.turn.notify_all()

    def all_of(self, number: int) -> list[Tensor]:
        with self.turn:
            complete = lambda: all((number, rank) in self.laid for rank in range(REPLICAS))  # noqa: E731
            assert self.turn.wait_for(complete, WAITS_S), f"collective {number} was not begun by all"
            return [self.laid[number, rank] for rank in range(REPLICAS)]


class Seat(Transport):
    """A transport of one replica; what is begun ends only in `wait`."""

    ends_by_itself = True

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.begun = meeting, rank, 0
        self.waited: list[int] = []

    def _begin(self, tensor: Tensor, end: Callable[[list[Tensor]], Any]) -> Work:
        number, self.begun = self.begun, self.begun + 1
        self.meeting.lay(number, self.rank, tensor)
        return Work(self, number, end)

    def sum(self, tensor: Tensor) -> Work:
        return self._begin(tensor, lambda found: tensor.copy_(torch.stack(found).sum(0)))

    def gather(self, tensor: Tensor, parts: Sequence[Tensor]) -> Work:
        return self._begin(tensor, lambda found: [part.copy_(one) for part, one in zip(parts, found, strict=True)])


class Work:
    """A collective that was begun."""

    ends_by_itself = True

    def __init__(self, seat: Seat, number: int, end: Callable[[list[Tensor]], Any]) -> None:
        self.seat, self.number, self.end = seat, number, end

    def has_ended(self) -> bool:
        return self.number in self.seat.waited

    def wait(self, broken: object) -> None:
        self.seat.waited.append(self.number)
        self.end(self.seat.meeting.all_of(self.number))


def team_of(meeting: Meeting, rank: int) -> Team:
    team = Team()
    team.membership.members, team.membership.size = tuple(range(REPLICAS)), REPLICAS
    team.sums.among((0,))
    team.sums.members, team.sums.rank, team.sums.size = team.membership.members, rank, REPLICAS
    team.sums._hosts = ("",) * REPLICAS
    team.sums.transports = (Seat(meeting, rank),)  # type: ignore[assignment]
    return team


Script = list[tuple[bool, bool]]
"""For each window: whether its merge may be left behind, and whether workers regroup in the middle of it."""


def gradients(rank: int, window: int) -> list[Tensor]:
    """What a replica computes in a window: as many parts as its number and one."""
    draw = torch.Generator().manual_seed(100 * rank + window)
    return [torch.randn(70, 9, generator=draw, dtype=torch.float64) for _ in range(rank + 1)]


def replica(rank: int, meeting: Meeting, script: Script, codec: str | None, outer: Outer | None) -> list[Tensor]:
    """The parameters of one replica after each window, by `LocalSteps`."""
    model = nn.Linear(9, 70, bias=False).double()
    nn.init.ones_(model.weight)
    team = team_of(meeting, rank)
    adds = Exact(team) if codec is None else Lossy(codec, list(model.parameters()), team, {})
    sync = LocalSteps(model.parameters(), adds, every=1, outer=outer)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    found = []
    for window, (behind, regroups) in enumerate(script):
        if regroups:
            team.membership.generation += 1
            team.meter.clear()  # as a generation ends
        under_way, hidden_s = sync.under_way and not regroups, team.meter.hidden_s
        for gradient in gradients(rank, window):
            model.weight.grad = gradient
            sync.in_hand = InHand((0, window), window, rank, 1.0)
            weight = float(2 + rank + window)
            sync.commit(lambda weight=weight: Record(0.0, weight, *[0.0] * 7, 0), void=False, treatment=Treatment())
            sync.update(optimizer)
        assert (team.meter.hidden_s > hidden_s) == under_way or codec is not None  # whose few bytes are not counted
        sync.behind = behind
        assert sync.barrier()
        if sync.under_way:
            seat = team.sums.transports[0]
            assert isinstance(seat, Seat)
            waits = len(seat.waited)
            sync.begin_merge()
            assert len(seat.waited) == waits  # it only begins
            with pytest.raises(UsageError, match="while a merge was under way"):
                sync.merge()
        found.append(model.weight.detach().clone())
    return found


def by_formula(script: Script, codec: str | None, outer: Outer | None) -> list[list[Tensor]]:
    """The same, written down: half the distance to the mean way of the window before, and the own way of this one."""
    now = [torch.ones(70, 9, dtype=torch.float64) for _ in range(REPLICAS)]
    common = now[0].clone()
    left_out = [torch.zeros(630, dtype=torch.float64) for _ in range(REPLICAS)]
    momentum = torch.zeros_like(common)
    left: tuple[list[Tensor], list[float]] | None = None
    after: list[list[Tensor]] = [[] for _ in range(REPLICAS)]

    def mean(ways: list[Tensor], weights: list[float]) -> Tensor:
        nonlocal left_out, momentum
        flats = [(way * weight / sum(weights)).reshape(-1) for way, weight in zip(ways, weights, strict=True)]
        if codec is not None:
            for flat, rest in zip(flats, left_out, strict=True):
                flat.add_(rest)
            left_out, _ = exchange(CODECS[codec], flats, [[one.view(70, 9)] for one in flats], [{} for _ in flats])
            way = flats[0].view(70, 9)
        else:
            way = torch.stack(flats).sum(0).view(70, 9)
        if outer is None:
            return way
        momentum = outer.momentum * momentum - way
        return outer.lr * (way - outer.momentum * momentum)

    for window, (behind, regroups) in enumerate(script):
        starts = [one.clone() for one in now]
        for rank, one in enumerate(now):
            for gradient in gradients(rank, window):
                one.sub_(RATE * gradient)
        ways = [one - start for one, start in zip(now, starts, strict=True)]
        weights = [float((2 + rank + window) * (rank + 1)) for rank in range(REPLICAS)]
        arrives = left is not None and not regroups
        if behind and (left is None or arrives):
            if left is not None:
                way = mean(*left)
                common = common + way
                now = [one + PULL * (common + own - one) for one, own in zip(now, ways, strict=True)]
            left = ways, weights
        else:
            if left is not None:
                ways = [one + other for one, other in zip(ways, left[0], strict=True)]
                weights = [one + other for one, other in zip(weights, left[1], strict=True)]
            common = common + mean(ways, weights)
            now, left = [common.clone() for _ in now], None
        for rank, one in enumerate(now):
            after[rank].append(one.clone())
    return after


STEADY: Script = [(True, False)] * 5 + [(False, False)] + [(True, False)] * 2 + [(False, False)]
REGROUPED: Script = [(True, False), (True, False), (True, True), (True, False), (True, False), (False, True)]


@pytest.mark.parametrize("script", [STEADY, REGROUPED], ids=["steady", "regrouped"])
@pytest.mark.parametrize("outer", [None, Outer(0.7, 0.9)], ids=["average", "nesterov"])
@pytest.mark.parametrize("codec", [None, "int8", "topk"])
def test_each_replica_goes_the_mean_way_a_window_later(codec: str | None, outer: Outer | None, script: Script) -> None:
    meeting, found = Meeting(), {}

    def run(rank: int) -> None:
        found[rank] = replica(rank, meeting, script, codec, outer)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(REPLICAS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = by_formula(script, codec, outer)
    for rank in range(REPLICAS):
        for window, (one, other) in enumerate(zip(found[rank], wanted[rank], strict=True)):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12, msg=f"replica {rank}, window {window}")
    apart = [not torch.equal(found[0][window], found[1][window]) for window in range(len(script))]
    regrouped = [behind and not (regroups and window) for window, (behind, regroups) in enumerate(script)]
    assert apart == regrouped  # equal, to the bit, where they waited
