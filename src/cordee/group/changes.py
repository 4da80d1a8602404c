"""What is said when workers come, leave or return while a run trains; and the base of all messages."""

from __future__ import annotations

from typing import Literal

import msgspec


class Message(msgspec.Struct, tag_field="message", tag=str.lower, forbid_unknown_fields=True):
    """One message; `message` holds its kind."""


class Running(msgspec.Struct, frozen=True):
    """What a run trains, for a host that enters it later."""

    job: str
    """The path of its file, as the launcher of the coordinator was given it."""
    settings: dict[str, str]
    plan: str
    deadline_s: float


class Leaving(Message):
    """A worker was asked to leave: it does so after the step that it is in."""

    reason: str
    worker: int = -1
    """-1: the one that says so; else a worker of the host whose launcher does."""


class Woke(Message):
    """The process of an evicted worker, which was stopped, has continued, says its launcher."""

    worker: int


class Newcomers(Message):
    """Which workers are to change after the next step."""

    workers: list[int]
    """Those that wait to come in."""
    leaving: list[int] = []
    """Those that were asked to leave."""


class Command(Message):
    """A user asks for another number of workers."""

    what: Literal["scale", "join"]
    workers: int
    """Of `scale`: how many there shall be; of `join`: how many more."""


class Answer(Message):
    """What became of a command."""

    text: str
    error: str = ""
    """The name of the class in `cordee.core.errors` if it was refused."""


class Without(Message):
    """A host fell silent: a launcher is asked whether it agrees to continue without it."""

    host: int


class Agreed(Message):
    """A launcher agrees: it never follows a coordinator on that host from now on."""

    host: int


class Turned(Message):
    """A part of a window was handed out, or done: launchers keep this for the coordinator after this one."""

    turn: str = ""
    """What has changed, as text that the coordinator reads; empty: `tickets` says how it stands."""
    tickets: str = ""
