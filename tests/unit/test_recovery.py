"""Whether a run that has lost its last whole replica continues by itself, and how: decisions without a process."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cordee.core.plan import Plan
from cordee.group.messages import LEAVES, Again, Place
from cordee.runtime.coordinator.recovery import LEFT, MOST_CONTINUED, Course, Left, decide
from cordee.runtime.coordinator.state import Hosts, Places
from cordee.runtime.engines.seam import seats

KILLED = "killed by SIGKILL"


def left(counts: list[int], lost: dict[int, str], hosts: set[int], steps: int = 50) -> Left:
    return Left.of(Places.of(seats(counts)), lost, hosts, steps=steps, saved=True)


@pytest.mark.parametrize(
    ("plan", "counts", "lost", "hosts", "then"),
    [
        ("tensor=2", [2], {1: KILLED}, {0}, ([1], "recover=fewer")),
        ("pipeline=2", [4], {1: KILLED, 0: LEAVES, 3: KILLED}, {0}, ([2], "pipeline=2,recover=fewer")),
        ("pipeline=2", [4], {3: KILLED}, {0}, ([3], "shard=params,recover=fewer")),
        ("tensor=2,recover=full", [2], {1: KILLED}, {0}, ([2], "tensor=2,recover=full")),
        ("recover=full", [1], {0: KILLED}, {0}, ([1], "recover=full")),  # nobody is left, and nobody need be
        ("pipeline=2", [1, 1], {1: KILLED}, {0}, ([1, 0], "recover=fewer")),
        ("pipeline=2,recover=full", [1, 1], {1: KILLED}, {0, 1}, ([1, 1], "pipeline=2,recover=full")),
        ("pipeline=2,recover=full", [1, 1], {1: KILLED}, {0}, ([1, 0], "recover=full")),  # its host is gone too
        ("tensor=4", [2, 1, 1], {3: KILLED}, {0, 1, 2}, ([2, 1, 0], "shard=params,recover=fewer")),
    ],
)
def test_a_run_continues_under_a_plan_that_fits_what_is_left(
    plan: str, counts: list[int], lost: dict[int, str], hosts: set[int], then: tuple[list[int], str]
) -> None:
    asked = Plan.parse(plan if "recover" in plan else f"{plan},recover=fewer")
    answer = decide(asked, Course(), left(counts, lost, hosts))
    assert isinstance(answer, Again), answer
    assert (answer.workers, answer.plan) == then
    assert answer.nodes == sum(count > 0 for count in answer.workers)
    assert Plan.parse(answer.plan).refusals(sum(answer.workers)) == []


def test_all_come_again_of_the_number_that_the_run_had_last() -> None:
    """Those that came since with those that began; none twice that was replaced, and none that has left."""
    places = Places.of(seats([2]))
    places, extra = places.seat(places.seats[0].world)
    places, _ = places.fill(0, 1)
    there = Left.of(places, {0: KILLED, 1: LEFT, extra.worker: KILLED, 3: KILLED}, {0}, steps=50, saved=True)
    assert (there.began, there.full, there.able) == ((2,), (2,), (0,))
    answer = decide(Plan.parse("recover=full"), Course(), there)
    assert isinstance(answer, Again) and answer.workers == [2]
    left_none = Left.of(places, {0: KILLED, 1: KILLED, extra.worker: KILLED, 3: KILLED}, {0}, steps=50, saved=True)
    assert left_none.full == (3,)


def test_a_host_that_only_stores_stays() -> None:
    answer = decide(Plan.parse("sync=server,recover=full"), Course(), left([1, 0], {0: KILLED}, {0, 1}))
    assert isinstance(answer, Again)
    assert (answer.workers, answer.nodes) == ([1, 0], 2)


@pytest.mark.parametrize(
    ("plan", "course", "what", "why"),
    [
        ("tensor=2", Course(), {}, ""),  # it was not asked to
        ("tensor=2,recover=full", Course(), {"saved": False}, "no state"),
        ("tensor=2,recover=full", Course(1, 50), {"steps": 50}, "beyond step 50"),
        ("tensor=2,recover=full", Course(1, 50), {"steps": 0}, "beyond step 50"),  # lost before its first step
        ("tensor=2,recover=full", Course(MOST_CONTINUED, 50), {"steps": 51}, f"{MOST_CONTINUED} times already"),
        ("tensor=2,recover=fewer", Course(), {"able": (0,)}, "recover=full does"),
        ("tensor=2,recover=fewer", Course(), {"began": (1, 1), "able": (0, 1), "hosts": {0, 1}}, "coordinates"),
    ],
)
def test_a_run_ends_where_it_cannot_continue(plan: str, course: Course, what: dict[str, object], why: str) -> None:
    there = replace(Left((2,), (2,), (1,), frozenset({0}), steps=60, saved=True), **what)  # type: ignore[arg-type]
    answer = decide(Plan.parse(plan), course, there)
    assert isinstance(answer, str) and why in answer and bool(answer) == bool(why)


def test_what_a_run_has_reached_does_not_go_back() -> None:
    course = Course().after(50).after(20)
    assert course == Course(2, 50)
    assert isinstance(decide(Plan.parse("recover=full"), course, left([1], {0: KILLED}, {0}, steps=50)), str)
    assert isinstance(decide(Plan.parse("recover=full"), course, left([1], {0: KILLED}, {0}, steps=51)), Again)


def test_copies_go_round_the_hosts_that_are_here() -> None:
    own, b, c = (Place(number, name, name, 1) for number, name in enumerate("abc"))
    hosts = Hosts(3, {0: 1}).come(1, 1, c).come(2, 1, b).numbered({1: "c", 2: "b"})
    assert [hosts.keeper_after(node, own) for node in range(3)] == [b, c, own]
    assert (hosts.here, hosts.lose(2).here) == ({0, 1, 2}, {0, 2})
    alone = Hosts(1, {0: 1})
    assert (alone.keeper_after(0, own), alone.here) == (None, {0})
