"""Who goes on, from where, and who gives what to whom: decisions without a socket."""

from __future__ import annotations

import pytest

from cordee.group.messages import Go
from cordee.runtime.coordinator.policy import (
    MOST_SOON,
    STEADY_STEPS,
    all_finished,
    decide,
    next_generation,
    put_out,
    replacement,
)
from cordee.runtime.coordinator.state import Hosts, Places, Roster
from cordee.runtime.engines.seam import seats


def formed(workers: int) -> Roster:
    """A roster whose first generation was just formed."""
    roster = Roster(expected=workers)
    for worker in range(workers):
        roster = roster.join(worker).report(worker, 0)
    step = next_generation(roster)
    assert step is not None
    return step[0]


def test_the_first_generation_waits_for_everybody() -> None:
    roster = Roster(expected=3).join(0).report(0, 0).join(2).report(2, 0)
    assert next_generation(roster) is None
    assert next_generation(roster.join(1)) is None  # here, but not ready
    step = next_generation(roster.join(1).report(1, 0))
    assert step is not None
    assert step[1] == Go(generation=1, members=(0, 1, 2), target=0, giver=None)
    assert step[0].formed and step[0].ready == {}


def test_who_died_before_joining_is_not_waited_for() -> None:
    roster = Roster(expected=2).join(0).report(0, 0).lose(1, "killed")
    step = next_generation(roster)
    assert step is not None and step[1].members == (0,)


def test_survivors_regroup_when_all_of_them_are_ready() -> None:
    roster = formed(4).lose(2, "killed")
    assert not roster.formed
    roster = roster.report(0, 7).report(3, 7)
    assert next_generation(roster) is None
    step = next_generation(roster.report(1, 7))
    assert step is not None
    assert step[1] == Go(generation=2, members=(0, 1, 3), target=7, giver=None)


def test_somebody_dies_while_the_others_regroup() -> None:
    roster = formed(4).lose(2, "killed").report(0, 7).report(3, 7).lose(1, "killed too")
    step = next_generation(roster)
    assert step is not None and step[1].members == (0, 3)
    assert step[0].lost == ((2, "killed"), (1, "killed too"))


def test_one_who_was_ready_and_then_died_is_forgotten() -> None:
    roster = formed(3).lose(2, "killed").report(0, 8).lose(0, "killed").report(1, 7)
    step = next_generation(roster)
    assert step is not None and step[1] == Go(2, (1,), 7, None)


@pytest.mark.parametrize(
    ("committed", "target", "giver"),
    [
        ({0: 5, 1: 5, 2: 5}, 5, None),
        ({0: 5, 1: 6, 2: 6}, 6, 1),
        ({4: 6, 2: 5, 9: 5}, 6, 4),
        ({3: 0}, 0, None),
    ],
)
def test_the_first_of_those_ahead_hands_over(committed: dict[int, int], target: int, giver: int | None) -> None:
    assert decide(9, committed) == Go(9, tuple(sorted(committed)), target, giver)


def test_survivors_two_steps_apart_are_a_defect() -> None:
    with pytest.raises(AssertionError, match="more than one"):
        decide(2, {0: 3, 1: 5})


def test_everybody_leaves_or_nobody() -> None:
    roster = formed(3).finish(0).finish(1)
    assert not all_finished(roster)
    assert all_finished(roster.finish(2))
    after_a_loss = roster.lose(2, "killed")
    assert not all_finished(after_a_loss)  # those who had finished must be ready to hand over
    assert after_a_loss.finished == frozenset()


def test_a_loss_counts_once_and_a_dead_worker_says_nothing() -> None:
    roster = formed(3).lose(1, "killed")
    assert roster.lose(1, "its connection closed") is roster
    assert roster.report(1, 5).ready == {}
    assert roster.finish(1).finished == frozenset()


def test_a_torn_collective_keeps_all_members() -> None:
    roster = formed(2).tear().report(0, 3).report(1, 4)
    step = next_generation(roster)
    assert step is not None and step[1] == Go(2, (0, 1), 4, 1)


def test_workers_are_numbered_host_by_host_with_the_coordinators_first() -> None:
    hosts = Hosts(3, {0: 2}).come(1, 3).come(2, 1).numbered({1: "zebra", 2: "ant"})
    assert [list(hosts.workers_of(host)) for host in (0, 2, 1)] == [[0, 1], [2], [3, 4, 5]]


def test_another_host_takes_the_place_of_one_that_left_before_the_start() -> None:
    hosts = Hosts(3, {0: 2}).come(1, 3).come(2, 1).leave(1)
    assert hosts.free() == 1
    assert Hosts(3, {0: 2}).come(1, 3).free() == 2


def test_one_that_waits_comes_in_when_all_members_let_it() -> None:
    roster = formed(3).lose(1, "killed").report(0, 7).report(2, 7)
    step = next_generation(roster)
    assert step is not None
    roster = step[0].invite(3).join(3).report(3, 0)
    assert roster.alive == {0, 2} and roster.waiting == {3}
    roster = roster.report(0, 9, admits=True)
    assert next_generation(roster) is None
    step = next_generation(roster.report(2, 9, admits=True))
    assert step is not None
    assert step[1] == Go(3, (0, 2, 3), 9, None, admits=True, newcomers=(3,))
    assert step[0].alive == {0, 2, 3} and not step[0].waiting and not step[0].invited


def test_nobody_comes_in_while_a_member_is_behind() -> None:
    roster = formed(3).invite(3).join(3).report(3, 0).lose(2, "killed")
    step = next_generation(roster.report(0, 9, admits=True).report(1, 8))
    assert step is not None
    assert step[1] == Go(2, (0, 1), 9, 0, admits=False)
    assert step[0].waiting == {3}
    again = next_generation(step[0].report(0, 9, admits=True).report(1, 9, admits=True))
    assert again is not None and again[1].members == (0, 1, 3)


def test_one_that_is_lost_before_it_came_in_disturbs_nobody() -> None:
    roster = formed(2).finish(0).invite(2).join(2).report(2, 0).lose(2, "killed")
    assert roster.formed and roster.finished == {0} and not roster.waiting
    assert roster.has_lost(2)
    step = next_generation(roster.report(0, 4, admits=True).report(1, 4, admits=True))
    assert step is not None and step[1] == Go(2, (0, 1), 4, None, admits=True)


def test_a_place_is_filled_with_a_number_that_none_had() -> None:
    places, seat = replacement(Places.of(seats([3])), 1, 50)
    assert seat is not None and (seat.worker, seat.world.rank, seat.joins) == (3, 1, True)
    places, seat = replacement(places.came([3], 60), 0, 90)
    assert seat is not None and (seat.worker, seat.world.rank) == (4, 0)
    assert places.replaces == {3: 1, 4: 0}
    assert replacement(places, 9, 90)[1] is None  # of another host


def test_a_place_is_given_up_where_workers_are_lost_soon_after_they_came() -> None:
    places, lost = Places.of(seats([2])), 1
    for _ in range(MOST_SOON):
        places, seat = replacement(places, lost, 5)
        assert seat is not None
        lost = seat.worker
        places = places.came([lost], 5)
    assert replacement(places, lost, 5 + STEADY_STEPS - 1)[1] is None
    assert replacement(places, lost, 5 + STEADY_STEPS)[1] is not None


@pytest.mark.parametrize(
    ("pairs", "workers", "gone"),
    [
        ([(0, 2)], {0: 1, 2: 8}, 2),  # the coordinator's host stays, however few workers it has
        ([(1, 2)], {1: 1, 2: 4}, 1),
        ([(1, 2)], {1: 2, 2: 2}, 2),
        ([(1, 2), (2, 3)], {1: 1, 2: 4, 3: 1}, 2),  # then 1 and 3 can go on together
        ([(0, 1), (0, 2), (0, 3)], {0: 1, 1: 1, 2: 1, 3: 1}, 3),
    ],
)
def test_which_of_two_hosts_is_put_out(pairs: list[tuple[int, int]], workers: dict[int, int], gone: int) -> None:
    assert put_out(pairs, workers) == gone


def test_the_hosts_of_workers_as_nodes() -> None:
    hosts = Hosts(3, {0: 2}).come(1, 1).come(2, 1).numbered({1: "c", 2: "b"})
    assert hosts.nodes_of([0, 1, 2, 3, 9]) == {0: 0, 1: 0, 2: 1, 3: 2}
    assert Hosts(1, {0: 2}).nodes_of([0, 1]) == {}
