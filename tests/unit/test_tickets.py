"""Who computes which part of a window: every part once, under any order of what happens."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from cordee.core.events import encode
from cordee.core.window import Item, Rule, Window
from cordee.group.messages import Done, Take, Ticket, Turned, WindowOver
from cordee.runtime.coordinator.tickets import Tickets, Turn, after, told


def window(steps: int, workers: int, *, bound: int | None = None, redo: bool = True, first: int = 7) -> Window:
    return Window((0, 3), first, first + steps, tuple(range(workers)), Rule(steps, bound, redo))


def heard(tickets: Tickets | None, worker: int, message: Take | Done, alive: Iterable[int]) -> Tickets:
    changed, answers = after(tickets, Turn("heard", worker, message, tuple(alive)))
    assert changed is not None and not answers
    return changed


class Workers:
    """Workers that ask, compute and are lost in a random order, and what they were told."""

    def __init__(self, opened: Window, seed: int, before: Tickets | None = None) -> None:
        self.window, self.random = opened, random.Random(seed)
        self.alive = set(opened.members)
        self.tickets = before
        self.in_hand: dict[int, Item] = {}
        self.kept: dict[Item, int] = {}
        """What counts as done, and by which worker."""
        self.over: dict[int, WindowOver] = {}
        self.new = set(opened.members)
        """Those that have not asked yet."""

    def say(self, worker: int, message: Take | Done) -> None:
        self.tickets = heard(self.tickets, worker, message, self.alive)
        self.answer()

    def answer(self) -> None:
        assert self.tickets is not None
        self.tickets, answers = self.tickets.hand_out()
        for worker, answer in answers:
            assert worker in self.alive and worker not in self.in_hand
            if isinstance(answer, WindowOver):
                self.over[worker] = answer
                continue
            assert isinstance(answer, Ticket)
            item = answer.step, answer.part
            assert item not in self.kept and item not in self.in_hand.values()
            self.check_bound(item[0])
            self.in_hand[worker] = item

    def check_bound(self, step: int) -> None:
        bound = self.window.rule.bound
        if bound is None or step == self.window.first:
            return
        earlier = [(one, part) for one in range(self.window.first, step - bound) for part in self.window.members]
        assert all(item in self.kept for item in earlier)

    def finish(self, worker: int) -> None:
        item = self.in_hand.pop(worker)
        self.kept[item] = worker
        self.say(worker, Done(self.window.number, *item, [1.0, float(item[0])]))

    def lose(self, worker: int) -> None:
        self.alive.discard(worker)
        self.new.discard(worker)
        self.in_hand.pop(worker, None)
        if self.window.rule.redo:
            self.kept = {item: by for item, by in self.kept.items() if by != worker}
        if self.tickets is not None:
            self.tickets = self.tickets.lose(worker)
            told, self.over = self.over, {}
            for one in set(told) & self.alive:  # their barrier fails, and they ask again
                self.say(one, Take(self.window))
            self.answer()

    def run(self, losses: int) -> None:
        while self.new or self.in_hand:
            able = sorted([*self.new, *self.in_hand])
            worker = self.random.choice(able)
            if losses and len(self.alive) > 1 and self.random.random() < 0.1:
                losses -= 1
                self.lose(self.random.choice(sorted(self.alive)))
            elif worker in self.new:
                self.new.discard(worker)
                self.say(worker, Take(self.window))
            else:
                self.finish(worker)


@pytest.mark.parametrize("redo", [True, False])
@pytest.mark.parametrize("bound", [None, 0, 1, 3])
def test_every_part_is_done_once_whatever_happens(bound: int | None, redo: bool) -> None:
    for seed in range(60):
        made = window(1 + seed % 7, 1 + seed % 5, bound=bound, redo=redo)
        workers = Workers(made, seed)
        workers.run(losses=seed % 3)
        assert set(workers.over) == workers.alive  # all are told, and none waits for ever
        items = {(step, part) for step in range(made.first, made.end) for part in made.members}
        for over in workers.over.values():
            assert {(step, part) for _, step, part in over.items} == items and len(over.items) == len(items)
            assert {(step, part): worker for worker, step, part in over.items} == workers.kept
            parts = len(made.members)
            assert over.records == [[parts, parts * float(step)] for step in range(made.first, made.end)]
            if redo:
                assert {worker for worker, _, _ in over.items} <= workers.alive
            assert workers.alive <= {worker for worker, _, _ in over.items}  # each of them had one at least


def test_workers_of_one_speed_keep_to_their_parts() -> None:
    workers = Workers(window(5, 3), 0)
    for worker in range(3):
        workers.say(worker, Take(workers.window))
    for _ in range(5):
        for worker in range(3):
            assert workers.in_hand[worker][1] == worker
            workers.finish(worker)
    assert len(workers.over) == 3


def test_a_fast_worker_takes_what_a_slow_one_has_not_begun() -> None:
    workers = Workers(window(4, 2), 0)
    workers.say(0, Take(workers.window))
    workers.say(1, Take(workers.window))
    order = []
    while 0 in workers.in_hand:
        order.append(workers.in_hand[0])
        workers.finish(0)
    assert order == [(7, 0), (8, 0), (9, 0), (10, 0), (8, 1), (9, 1), (10, 1)]
    assert not workers.over and workers.in_hand == {1: (7, 1)}
    workers.finish(1)
    assert set(workers.over) == {0, 1}


def test_the_first_that_asks_decides_for_whom_steps_are_cut() -> None:
    """A worker that knows of a loss already asks for fewer parts than the others."""
    opened = window(2, 3)
    tickets = heard(None, 0, Take(opened), {0, 2})
    other = Window(opened.number, opened.first, opened.end, (0, 2), opened.rule)
    tickets, answers = heard(tickets, 2, Take(other), {0, 2}).hand_out()
    assert answers == [(0, Ticket(opened, 7, 0)), (2, Ticket(opened, 7, 2))]
    assert tickets.free == 4  # the part of the one that is lost too


def test_what_a_worker_does_not_hold_is_a_defect() -> None:
    tickets = heard(None, 0, Take(window(2, 2)), {0, 1})
    with pytest.raises(ValueError, match="did \\(8, 0\\), but holds \\(7, 0\\)"):
        heard(tickets, 0, Done((0, 3), 8, 0, []), {0, 1})
    with pytest.raises(ValueError, match="the open one is \\(0, 3\\)"):
        heard(tickets, 0, Done((0, 2), 7, 0, []), {0, 1})
    with pytest.raises(ValueError, match="worker 5 is none of"):
        heard(tickets, 5, Take(window(2, 2)), {0, 1, 5})


def following(first: Window, *, members: tuple[int, ...] | None = None, former: bool = True) -> Window:
    """The window after another, whose merge is under way or not."""
    number = (0, first.number[1] + 1)
    left = first.number if former else None
    return Window(number, first.end, first.end + 3, members or first.members, first.rule, left)


def by_worker(items: list[tuple[int, int, int]], workers: set[int]) -> set[Item]:
    return {(step, part) for worker, step, part in items if worker in workers}


@pytest.mark.parametrize("regrouped", [True, False])
@pytest.mark.parametrize("former", [True, False])
def test_what_was_lost_of_the_window_before_is_done_again(former: bool, regrouped: bool) -> None:
    """Whether workers are lost between two windows or in the second one; what is done again has its record already."""
    for seed in range(80):
        first = Workers(window(1 + seed % 4, 2 + seed % 4), seed)
        first.run(losses=0)
        (items,) = {tuple(over.items) for over in first.over.values()}
        gone: set[int] = set()
        assert first.tickets is not None
        if seed % 2:  # lost between the two: the first window was told to be over
            gone = {first.random.choice(first.window.members)}
            first.tickets = first.tickets.lose(*gone)
        left = tuple(sorted(first.alive - gone))
        opened = following(first.window, members=left if regrouped else None, former=former)
        second = Workers(opened, seed, first.tickets)
        second.alive, second.new = set(left), set(left)
        second.run(losses=seed % 3)
        assert set(second.over) == second.alive
        wanted = {(step, part) for step in range(opened.first, opened.end) for part in range(len(opened.members))}
        again = by_worker(list(items), set(first.window.members) - second.alive) if former else set()
        for over in second.over.values():
            found = [(step, part) for _, step, part in over.items]
            assert sorted(found) == sorted(wanted | again)  # each of them once
            assert {worker for worker, _, _ in over.items} == second.alive
            parts = len(opened.members)
            assert over.records == [[parts, parts * float(step)] for step in range(opened.first, opened.end)]


def test_a_merge_that_has_arrived_is_not_done_again() -> None:
    """When the third window begins, what was under way of the first has been agreed on."""
    first = Workers(window(2, 2), 0)
    first.run(losses=0)
    second = Workers(following(first.window), 1, first.tickets)
    second.run(losses=0)
    third = Workers(following(second.window), 2, second.tickets)
    for worker in third.window.members:
        third.new.discard(worker)
        third.say(worker, Take(third.window))
    third.lose(1)
    third.run(losses=0)
    (over,) = third.over.values()
    assert {step for _, step, _ in over.items} == {*range(second.window.first, third.window.end)}
    lost = [item for item in second.over[0].items if item[0] == 1]
    assert [item for item in over.items if item[1] < third.window.first] == [(0, *item[1:]) for item in lost]


def test_a_window_is_open_again_if_all_that_knew_of_its_end_are_lost() -> None:
    """Only worker 0 has the result of the barrier: it asks for the next window, and is lost."""
    first = Workers(window(3, 3), 0)
    first.run(losses=0)
    done = {(step, part): worker for worker, step, part in first.over[1].items}
    assert first.tickets is not None
    tickets = heard(first.tickets, 0, Take(following(first.window)), first.alive).lose(0)
    tickets, answers = heard(tickets, 1, Take(first.window), {1, 2}).hand_out()
    ((_, ticket),) = answers
    assert isinstance(ticket, Ticket) and ticket.window == first.window and done[ticket.step, ticket.part] == 0
    kept = {item for item, part in tickets._parts() if part.turn >= 0}
    assert kept == {item for item, worker in done.items() if worker != 0}


def test_an_answer_that_was_lost_with_its_coordinator_is_given_again() -> None:
    """A worker says again what it did last: the part counts once, and the next one is the one it was handed before."""
    opened = window(2, 2)
    tickets = heard(heard(None, 0, Take(opened), {0, 1}), 1, Take(opened), {0, 1}).hand_out()[0]
    done = Done(opened.number, 7, 0, [1.0])
    tickets, [(_, first)] = heard(tickets, 0, done, {0, 1}).hand_out()
    tickets, [(_, again)] = heard(tickets, 0, done, {0, 1}).hand_out()
    assert first == again == Ticket(opened, 8, 0) and tickets.left == 3
    for worker, step in ((1, 7), (1, 8), (0, 8)):
        last = Done(opened.number, step, worker, [1.0])
        tickets, answers = heard(tickets, worker, last, {0, 1}).hand_out()
    over, last = dict(answers)[1], Done(opened.number, 8, 1, [1.0])
    tickets = heard(tickets, 0, Take(following(opened)), {0, 1}).hand_out()[0]
    assert after(tickets, Turn("heard", 1, last, (0, 1))) == (tickets, [(1, over)])


def test_a_launcher_that_is_told_of_each_change_knows_the_same() -> None:
    """From the beginning, or from the moment at which it came back; it may have to coordinate next."""
    opened = window(2, 2)
    tickets: Tickets | None = None
    mirror: Tickets | None = None
    late: Tickets | None = None
    turns = [Turn("heard", worker, Take(opened), (0, 1)) for worker in (0, 1)]
    turns += [Turn("handed out"), Turn("heard", 0, Done(opened.number, 7, 0, [1.0, 0.5]), (0, 1)), Turn("lost", 1)]
    turns += [Turn("handed out")]
    for count, turn in enumerate(turns):
        tickets, _ = after(tickets, turn)
        word = Turned(turn=encode(turn).decode())
        mirror = told(mirror, word)
        late = told(late, word if count > 3 else Turned(tickets=encode(tickets).decode()))
        assert tickets == mirror == late
    assert tickets is not None and tickets.held == {0: (8, 0)}
