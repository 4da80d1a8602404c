"""What happens to the workers of a run, as the coordinator's loop is told: by the hub, and by what starts processes.

A notice is put into a queue with the number of the worker that it is about, -1 if it is about none. Besides those
below it is an event for the record, a message of `group/messages.py` (an engine says `Lose` of a process that has
ended), or the error that ends the run.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import msgspec

from cordee.group.messages import Answer, Command, Go, Holders, Seat

Notices = queue.SimpleQueue[tuple[int, Any]]


class Notice(msgspec.Struct, tag_field="notice", tag=str.lower):
    """One notice; `notice` holds its kind."""


class NotStarted(Notice):
    """A process could not be started."""

    reason: str


class Look(Notice):
    """The engine's `look` is due."""


class Lost(Notice):
    """A worker is gone."""

    host: str
    reason: str
    left: int
    """How many workers are left."""
    at: float
    """When it was seen, in seconds since 1970."""
    with_host: bool = False
    """Whether its host is gone too."""
    member: bool = True
    """False: it was to come in, and is gone before it could."""


class ServerLost(Notice):
    """A parameter server is gone."""

    shard: int
    host: str
    reason: str
    at: float
    """When it was seen, in seconds since 1970."""
    start: Seat | None
    """The server to start in its place."""
    ends: bool
    """Whether what it held is lost with it."""


class ServersHold(Notice):
    """Another view of which servers hold what."""

    holders: Holders
    at: float


class Formed(Notice):
    """A generation begins."""

    go: Go
    at: float


class Minority(Notice):
    """So many hosts are out of reach that those which are left must not continue."""

    here: int
    of: int
    reason: str


class HeardOut(Notice):
    """All is read that ended workers said."""


class Superseded(Notice):
    """Another coordinator of this run has been started since."""

    term: int


class Leaves(Notice):
    """A worker was asked to leave, and does so between two steps."""

    reason: str


class HostCame(Notice):
    """A host has entered the run that has begun."""

    node: int
    host: str
    workers: int


class Departed(msgspec.Struct):
    """A worker has left; nothing of its work was lost. Between the parts of a launcher alone, as the next."""

    host: str
    reason: str
    left: int
    """How many workers are left."""
    at: float


class Commanded(msgspec.Struct):
    """A user asks for another number of workers."""

    command: Command
    answer: Callable[[Answer], None]
    """To be called once, from any thread."""


class Interrupt(Notice):
    """A signal came."""

    host: str = ""
    """To the launcher of another host, which coordinates nothing; empty for our own."""
