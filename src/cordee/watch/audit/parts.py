"""The audit of windows, where workers compute parts of several steps before they agree: each part has to count once."""

from __future__ import annotations

from collections.abc import Container, Iterator

from cordee.core.events import PushesEvent, WindowEvent


class Parts:
    """The parts that one start of a run has computed."""

    def __init__(self) -> None:
        """None yet."""
        self.items = 0
        """How many count."""
        self._windows: list[WindowEvent] = []
        self._updates: dict[int, int] = {}
        """By step: the update of parameter servers that came of its last push."""

    def add(self, event: WindowEvent | PushesEvent) -> None:
        """One more event."""
        if isinstance(event, WindowEvent):
            self._windows.append(event)
            self.items += sum(step >= event.first for _, step, _ in event.items)
        else:
            for step, _, version, _ in event.pushes:
                self._updates[step] = max(version, self._updates.get(step, 0))

    def left_out(self, before: int, end: int) -> Iterator[tuple[int, str]]:
        """The same of steps after step `before`, up to step `end`, that are in no window, though all should be."""
        for window in self._windows:
            if window.first > before + 1:
                yield before + 1, f"the window of step {before + 1} is not on record"
            before = window.last
        if before < end:
            yield before + 1, f"the window of step {before + 1} is not on record"

    def wrong(self, lost: Container[int]) -> Iterator[tuple[int, str]]:
        """Step and text of what is wrong, if these workers were lost."""
        done = 0
        before: dict[tuple[int, int], int] = {}
        """Who computed each part of the window before."""
        for window in self._windows:
            if window.first <= done:
                yield window.first, f"step {window.first} is in two windows"
            done = window.last
            now: dict[tuple[int, int], int] = {}
            for worker, step, part in window.items:
                at = (step, part)
                if step < window.first:
                    if before.get(at) not in lost:
                        yield step, f"part {part} of step {step} was computed again, though its worker was not lost"
                    before[at] = worker
                elif at in now:
                    yield step, f"part {part} of step {step} counts twice, of workers {now[at]} and {worker}"
                else:
                    now[at] = worker
            for step in range(window.first, window.last + 1):
                for part in range(len(window.workers)):
                    if (step, part) not in now:
                        yield step, f"part {part} of step {step} was not computed"
            if len(now) > (window.last + 1 - window.first) * len(window.workers):
                yield (
                    window.last,
                    f"the window of steps {window.first} to {window.last} has parts that it is not cut into",
                )
            before = now
        yield from self._wrong_updates()

    def _wrong_updates(self) -> Iterator[tuple[int, str]]:
        """Parameter servers make one update for each part, and for each step that one worker computes alone.

        Those steps are in no window. What was pushed after the last window on record belongs to one that was cut off.
        """
        if not self._windows or self._windows[0].first != 1:  # a resumed start, whose servers begin to count anew
            return
        ends, alone = 0, 0
        for window in self._windows:
            ends, alone = window.last, alone + window.first - ends - 1
        parts = self.items + alone
        updates = max((version for step, version in self._updates.items() if step <= ends), default=0)
        if updates and updates != parts:
            yield ends, f"parameter servers made {updates} updates for {parts} parts of steps"
