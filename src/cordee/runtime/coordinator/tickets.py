"""Which worker computes which part of the open window: a frozen value, and what follows from what workers say.

Every worker holds the part of the window's first step that is its own from the beginning, so each has at least one.
After that it is handed the earliest free part of its own place among the members; when there is none, the earliest of
another place. So workers of equal speed keep to their shares, and a fast one takes what a slow one has not begun.

A window may begin while the merge of the one before is under way. Then what a lost worker did there never arrives, and
is done again as parts of the open window. Their records are known already: those of the second time do not count.

Cost of a ticket: the steps of the window plus its parts per step; one that is taken from another worker's place may
cost their product.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import msgspec

from cordee.core.window import Item, Window
from cordee.group.messages import Done, Message, Take, Ticket, Turned, WindowOver
from cordee.runtime.notices import Notice


class Part(NamedTuple):
    """What is known of one part of a step."""

    worker: int = -1
    """Which one computes it, or has done so; -1: it is free."""
    turn: int = -1
    """How many parts were done before it; -1: it is not done."""
    record: tuple[float, ...] = ()


FREE = Part()


@dataclass(frozen=True)
class Tickets:
    """The parts of the open window: free, held by a worker, or done."""

    window: Window
    rows: tuple[tuple[Part, ...], ...]
    """For each step, its parts; before them those of the window before, if its merge is under way."""
    held: dict[int, Item]
    """Worker → the part that it computes."""
    free: int
    left: int
    """Parts that are not done."""
    turn: int = 0
    """Parts that were ever done."""
    waiting: tuple[int, ...] = ()
    """Workers that ask for a part, or for the end of the window."""
    opened: int = 0
    """Parts that were done before it was opened."""
    before: Tickets | None = None
    """The window before, until it is certain that all workers know of its end."""

    @classmethod
    def begin(cls, window: Window, alive: Iterable[int], before: Tickets | None = None) -> Tickets:
        """Open a window: every member that is alive holds its own part of the first step."""
        members = set(alive)
        held = {worker: (window.first, part) for part, worker in enumerate(window.members) if worker in members}
        first = tuple(Part(worker) if worker in held else FREE for worker in window.members)
        rows = (first, *((FREE,) * len(first) for _ in range(window.first + 1, window.end)))
        items = len(rows) * len(first)
        if before is None:
            return cls(window, rows, held, items - len(held), items)
        former = before.own if window.former == before.window.number else ()
        former = tuple(tuple(part if part.turn >= 0 else FREE for part in row) for row in former)
        lost = sum(part is FREE for row in former for part in row)
        begun = cls(window, (*former, *rows), held, items - len(held) + lost, items + lost, before.turn)
        return replace(begun, opened=before.turn, before=replace(before, before=None))

    @property
    def over(self) -> bool:
        """Whether all parts are done."""
        return self.left == 0

    @property
    def own(self) -> tuple[tuple[Part, ...], ...]:
        """The parts of this window's own steps."""
        return self.rows[self.window.first - self.window.end :]

    def ask(self, worker: int) -> Tickets:
        """A worker asks for its part, or for the next one."""
        if worker not in self.window.members:
            raise ValueError(f"worker {worker} is none of {self.window.members}, for which the window was opened")
        return self if worker in self.waiting else replace(self, waiting=(*self.waiting, worker))

    def finish(self, worker: int, item: Item, record: Iterable[float]) -> Tickets:
        """A worker has done the part that it held, and asks for the next one."""
        if self.held.get(worker) != item:
            raise ValueError(f"worker {worker} says that it did {item}, but holds {self.held.get(worker)}")
        held = {other: one for other, one in self.held.items() if other != worker}
        rows = self._changed({item: Part(worker, self.turn, tuple(record))})
        return replace(self, rows=rows, held=held, left=self.left - 1, turn=self.turn + 1).ask(worker)

    def has_done(self, worker: int, window: tuple[int, int], item: Item) -> bool:
        """Whether a worker has said before that it did this part."""
        place = item[0] - self._first
        if window != self.window.number or not 0 <= place < len(self.rows):
            return False
        part = self.rows[place][item[1]]
        return part.worker == worker and part.turn >= 0

    def lose(self, worker: int) -> Tickets:
        """A worker is lost: what it held is free again, and what it had done too, if that is lost with it."""
        waiting = tuple(one for one in self.waiting if one != worker)
        undone: list[Item] = []
        if self.window.rule.redo:
            undone = [item for item, part in self._parts() if part.worker == worker and part.turn >= 0]
        freed = [*undone, *([self.held[worker]] if worker in self.held else [])]
        return replace(
            self,
            rows=self._changed(dict.fromkeys(freed, FREE)),
            held={other: one for other, one in self.held.items() if other != worker},
            free=self.free + len(freed),
            left=self.left + len(undone),
            waiting=waiting,
            before=None if self.before is None else self.before.lose(worker),
        )

    def hand_out(self) -> tuple[Tickets, list[tuple[int, Message]]]:
        """Answer those that wait, as far as there is something to say: a part each, or that the window is over."""
        if self.over:
            over = WindowOver(self.window, self.records(), self.history())
            return replace(self, waiting=()), [(worker, over) for worker in self.waiting]
        tickets, answers = self, list[tuple[int, Message]]()
        for worker in self.waiting:
            item = tickets.held.get(worker) or tickets._next(worker)
            if item is None:
                continue
            if worker not in tickets.held:
                rows = tickets._changed({item: Part(worker)})
                tickets = replace(tickets, rows=rows, held={**tickets.held, worker: item}, free=tickets.free - 1)
            answers.append((worker, Ticket(self.window, *item)))
        told = {worker for worker, _ in answers}
        return replace(tickets, waiting=tuple(one for one in self.waiting if one not in told)), answers

    def records(self) -> list[list[float]]:
        """For each step the sum of what its parts came to, in the order of the parts."""
        return [[sum(numbers) for numbers in zip(*(part.record for part in row), strict=True)] for row in self.own]

    def history(self) -> list[tuple[int, int, int]]:
        """Worker, step and part of all that was done in this window, in the order in which it was done."""
        done = sorted((part.turn, part.worker, *item) for item, part in self._parts() if part.turn >= self.opened)
        return [(worker, step, part) for _, worker, step, part in done]

    def _parts(self) -> list[tuple[Item, Part]]:
        return [((self._first + place, k), part) for place, row in enumerate(self.rows) for k, part in enumerate(row)]

    @property
    def _first(self) -> int:
        """The first step that has parts here."""
        return self.window.end - len(self.rows)

    def _next(self, worker: int) -> Item | None:
        """The earliest free part of this worker's own place, else of another one; None if it has to wait."""
        if not self.free:
            return None
        own, rows = self.window.members.index(worker), self._allowed()
        for place, row in enumerate(rows):
            if row[own].worker < 0:
                return self.window.first + place, own
        former = self.rows[: -len(self.own)]
        for place, row in enumerate((*former, *rows)):
            for part, one in enumerate(row):
                if one.worker < 0:
                    return self._first + place, part
        return None

    def _allowed(self) -> tuple[tuple[Part, ...], ...]:
        """The steps whose parts may be handed out."""
        bound, rows = self.window.rule.bound, self.own
        if bound is None:
            return rows
        complete = 0
        while complete < len(rows) and all(part.turn >= 0 for part in rows[complete]):
            complete += 1
        return rows[: complete + bound + 1]

    def _changed(self, parts: dict[Item, Part]) -> tuple[tuple[Part, ...], ...]:
        rows = list(self.rows)
        for (step, part), one in parts.items():
            place = step - self._first
            rows[place] = (*rows[place][:part], one, *rows[place][part + 1 :])
        return tuple(rows)


class Turn(Notice):
    """One change of the tickets, as the coordinator makes it and its launcher after it."""

    what: Literal["heard", "lost", "handed out"]
    worker: int = -1
    message: Take | Done | None = None
    alive: tuple[int, ...] = ()


def after(tickets: Tickets | None, turn: Turn) -> tuple[Tickets | None, list[tuple[int, Message]]]:
    """The tickets after a change, and what workers are told then."""
    if turn.message is not None:
        return _heard(tickets, turn.worker, turn.message, turn.alive)
    if tickets is None:
        return None, []
    return (tickets.lose(turn.worker), []) if turn.what == "lost" else tickets.hand_out()


def told(tickets: Tickets | None, message: Turned) -> Tickets | None:
    """The same for a launcher that keeps them for another coordinator."""
    if message.turn:
        return after(tickets, msgspec.json.decode(message.turn, type=Turn))[0]
    return msgspec.json.decode(message.tickets, type=Tickets)


def _heard(
    tickets: Tickets | None, worker: int, message: Take | Done, alive: Iterable[int]
) -> tuple[Tickets, list[tuple[int, Message]]]:
    """What a worker asked for, or has done; the first that asks for a window opens it, and ends the one before.

    If all workers that knew of that end are lost, the others ask for the one before again: it is not over for them.
    A worker whose answer was lost with its coordinator says to the next one again what it has done.
    """
    number = None if tickets is None else tickets.window.number
    if isinstance(message, Take):
        wanted = message.window.number
        if tickets is not None and tickets.before is not None and tickets.before.window.number == wanted:
            tickets = tickets.before
        elif tickets is None or number != wanted:
            tickets = Tickets.begin(message.window, alive, tickets)
        return tickets.ask(worker), []
    done = (message.step, message.part)
    if tickets is not None and tickets.before is not None and tickets.before.has_done(worker, message.window, done):
        before = tickets.before
        return tickets, [(worker, WindowOver(before.window, before.records(), before.history()))]
    if tickets is not None and tickets.has_done(worker, message.window, done):
        return tickets.ask(worker), []
    if tickets is None or number != message.window:
        raise ValueError(f"worker {worker} did a part of window {message.window}, but the open one is {number}")
    return tickets.finish(worker, done, message.record), []
