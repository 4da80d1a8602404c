"""Which workers start and leave when another number is asked for, a host comes, or an evicted worker wakes."""

from __future__ import annotations

import pytest

from cordee.core.plan import Plan
from cordee.group.messages import Command
from cordee.runtime.coordinator.joining import decide, extra, host_came, none_stays, refuses_newcomers, take_back
from cordee.runtime.coordinator.policy import next_generation
from cordee.runtime.coordinator.state import Places, Roster
from cordee.runtime.engines.seam import seats


def run_of(*counts: int) -> Places:
    return Places.of(seats(counts))


def unchecked(workers: int) -> None:
    """Any number has room."""


def where(places: Places, worker: int) -> tuple[int, int]:
    return places.seats[worker].world.node, places.seats[worker].world.local_rank


def test_those_that_come_take_the_emptiest_places() -> None:
    places, change = decide(Command("scale", 5), run_of(2, 1), unchecked)
    assert [seat.worker for seat in change.starts] == [3, 4] and all(seat.joins for seat in change.starts)
    assert [where(places, worker) for worker in (3, 4)] == [(0, 0), (0, 1)]
    places, seat = extra(places)
    assert (seat.worker, where(places, 5)) == (5, (1, 0)) and places.here == set(range(6))
    places = run_of(3).without(1)
    assert where(extra(places)[0], 3) == (0, 1)


def test_those_with_the_highest_numbers_leave() -> None:
    places, change = decide(Command("scale", 1), run_of(2, 2).without(1), unchecked)
    assert change.leaves == (2, 3) and change.starts == () and places.here == {0}
    again, change = decide(Command("scale", 1), places, unchecked)
    assert (again, change.leaves, change.text) == (places, (), "1 worker, as before")
    assert decide(Command("scale", 2), places, unchecked)[1].starts[0].worker == 4


def test_joining_is_for_the_coordinators_host() -> None:
    asked = list[int]()
    places, change = decide(Command("join", 2), run_of(1, 4), asked.append)
    assert [where(places, seat.worker) for seat in change.starts] == [(0, 0), (0, 0)] and asked[-1] == 3
    places, change = decide(Command("join", 1), run_of(0, 2), unchecked)
    assert where(places, change.starts[0].worker) == (0, 0)


def test_a_host_brings_its_places() -> None:
    places, change = host_came(run_of(1, 1), 2, "c", 2)
    assert [(seat.worker, seat.world.node, seat.world.local_rank) for seat in change.starts] == [(2, 2, 0), (3, 2, 1)]
    assert change.starts[0].world.nodes == 3 and change.starts[0].world.size == 2
    assert where(decide(Command("scale", 5), places, unchecked)[0], 4) == (0, 0)


def test_one_that_wakes_returns_unless_its_place_is_taken() -> None:
    places, change = take_back(run_of(3).without(1), 1, 30)
    assert [seat.worker for seat in change.starts] == [3] and places.replaces == {3: 1} and where(places, 3) == (0, 1)
    _, change = take_back(places, 1, 31)
    assert change.starts == () and "worker 3 has its place" in change.text
    for worker in (3, 4, 5, 6):
        before = places.without(worker)
        places, change = take_back(before, worker, 30)
    assert change.starts == () and "stays empty" in change.text


@pytest.mark.parametrize(
    ("plan", "kind", "started", "why"),
    [
        ("auto", "job", 2, ""),
        ("sync=local,local_steps=4", "sent", 2, ""),
        ("auto", "job", 1, "one worker"),
        ("replace=true", "job", 1, ""),
        ("sync=auto", "job", 2, "--replace"),
        ("sync=auto,replace=true", "job", 2, ""),
        ("pipeline=2", "job", 4, "a replica lies over several workers"),
        ("auto", "script", 2, "loop of its own"),
    ],
)
def test_who_can_come_in(plan: str, kind: str, started: int, why: str) -> None:
    refusal = refuses_newcomers(Plan.parse(plan), kind, started)
    assert why in refusal and bool(why) == bool(refusal)


# ------------------------------------------------------------- the roster


def roster_of(workers: int) -> Roster:
    roster = Roster(expected=workers)
    for worker in range(workers):
        roster = roster.join(worker).report(worker, 0)
    step = next_generation(roster)
    assert step is not None
    return step[0]


def ready(roster: Roster, *, admits: bool = True) -> Roster:
    for worker in roster.alive:
        roster = roster.report(worker, 5, admits=admits)
    return roster


def test_one_leaves_when_all_are_between_two_steps() -> None:
    roster = roster_of(3).ask_to_leave(1)
    step = next_generation(ready(roster, admits=False))
    assert step is not None and (step[1].members, step[1].left) == ((0, 1, 2), ())
    step = next_generation(ready(step[0]))
    assert step is not None and (step[1].members, step[1].left) == ((0, 2), (1,))
    assert step[0].has_lost(1) and not step[0].lost and not step[0].leaving
    later = next_generation(ready(step[0].lose(2, "it was killed"), admits=False))
    assert later is not None and later[1].members == (0,)


def test_the_last_with_the_state_stay_until_others_have_it() -> None:
    roster = roster_of(2).ask_to_leave(0).ask_to_leave(1)
    assert none_stays(roster) and not none_stays(roster.invite(2))
    step = next_generation(ready(roster.invite(2).report(2, 0)))
    assert step is not None and (step[1].members, step[1].left, step[1].newcomers) == ((0, 1, 2), (), (2,))
    step = next_generation(ready(step[0]))
    assert step is not None and (step[1].members, step[1].left) == ((2,), (0, 1))
    assert not none_stays(roster_of(2).ask_to_leave(0)) and none_stays(roster_of(2).ask_to_leave(0).lose(1, "killed"))
