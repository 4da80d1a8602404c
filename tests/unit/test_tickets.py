"""Who computes which part of a window: every part once, under any order of what happens."""

from __future__ import annotations

import random

import pytest

from cordee.core.window import Item, Rule, Window
from cordee.group.messages import Done, Take, Ticket, WindowOver
from cordee.runtime.coordinator.tickets import Tickets, heard


def window(steps: int, workers: int, *, bound: int | None = None, redo: bool = True, first: int = 7) -> Window:
    return Window((0, 3), first, first + steps, tuple(range(workers)), Rule(steps, bound, redo))


class Workers:
    """Workers that ask, compute and are lost in a random order, and what they were told."""

    def __init__(self, opened: Window, seed: int) -> None:
        self.window, self.random = opened, random.Random(seed)
        self.alive = set(opened.members)
        self.tickets: Tickets | None = None
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
