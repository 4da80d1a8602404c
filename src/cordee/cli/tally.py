"""What a run did, counted from its events, for the line at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from cordee.core.words import plural


class Tally:
    """Passes every event on, and remembers how far the run came."""

    def __init__(self, listen: Callable[[dict[str, Any]], None]) -> None:
        """Nothing has happened."""
        self._listen = listen
        self._began = time.monotonic()
        self.steps = 0
        """Steps of this start."""
        self._last: dict[str, Any] = {}

    def __call__(self, event: dict[str, Any]) -> None:
        """One event of the run."""
        if event["event"] == "start":  # not while hosts waited for each other
            self._began = time.monotonic()
        if event["event"] == "step":
            self.steps += 1
            self._last = event
        self._listen(event)

    def lines(self) -> Iterator[str]:
        """How far it came; nothing if there was no step."""
        if self.steps:
            loss = self._last["loss"]
            figure = "not finite" if loss is None else f"{loss:.4f}"
            whole = f" (of {self._last['step']} in all)" if self._last["step"] > self.steps else ""
            count = f"{plural(self.steps, 'step')}{whole}"
            yield f"{count}, last loss {figure}, {time.monotonic() - self._began:.1f} s"
