"""What a worker tells the launcher besides events for the record."""

from __future__ import annotations

import msgspec


class News(msgspec.Struct, tag_field="message", tag=str.lower, forbid_unknown_fields=True):
    """Something that a worker tells; `message` holds its kind."""


class Done(News):
    """The worker has done its part, and will end."""


class Failed(News):
    """An error ends this worker, and with it the run."""

    error: str
    """Name of the error's class in `cordee.core.errors`."""
    text: str
    """What to tell the user."""
    traceback: str
    """Of the user's code; empty where the error says all there is to know."""
    next_step: str
    """What the user can do now; empty where the text says it."""


class Saving(News):
    """A checkpoint is being written, though the run has failed."""

    step: int
    seconds: float
    """How long it may take."""
