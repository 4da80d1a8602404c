"""Events of workers that come in, leave or return while a run trains; losses are in `core/events.py`."""

from __future__ import annotations

from typing import Literal

from cordee.core.event import Count, Event, Moment

Why = Literal["scale", "join", "host", "woke", "leave"]


class JoinedEvent(Event):
    """A worker came in between two steps, with the state of the others."""

    worker: Count
    """who came in"""
    host: str
    """where it runs"""
    replaces: Count | None
    """the lost worker in whose place it was started; null for one that came besides"""
    at: Moment | None = None
    """when it was let in, in the launcher's clock"""


class LeftEvent(Event):
    """A worker left between two steps, as it was asked to; nothing of its work was lost."""

    worker: Count
    """who left"""
    host: str
    """where it ran"""
    reason: str
    """what asked it to leave"""
    left: Count
    """workers that are left"""
    at: Moment | None = None
    """when the others went on without it, in the launcher's clock"""


class ChangeEvent(Event):
    """Another number of workers was asked for or became possible, and this was decided."""

    why: Why
    """what it follows from: the commands `cordee scale` and `cordee join`, a host that entered the run, an evicted \
worker whose process continues, a signal to one worker"""
    text: str
    """what was decided"""
    starts: list[Count] = []
    """workers that are started, to come in between two steps"""
    leaves: list[Count] = []
    """workers that leave between two steps"""
