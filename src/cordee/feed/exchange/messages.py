"""What hosts say to each other about blocks of data; the bytes of a `Piece` follow it. Every length has a limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Union

import msgspec
from msgspec import Meta

from cordee.feed.exchange.listing import BLOCK, MOST_BYTES, MOST_FILES, Entry

MOST_HOSTS = 1000
BATCH = 1000
"""Files that one message names at most."""
MOST_PROBE = 8 << 20

Text = Annotated[str, Meta(max_length=1024)]
Place = Annotated[str, Meta(min_length=3, max_length=300)]
Number = Annotated[int, Meta(ge=0, lt=MOST_FILES)]
Bytes = Annotated[int, Meta(ge=0, le=MOST_BYTES)]


class Exchanged(msgspec.Struct, tag_field="exchange", tag=str.lower, forbid_unknown_fields=True):
    """One message; `exchange` holds its kind."""


class Outcome(msgspec.Struct, frozen=True):
    """What became of one host."""

    host: Place
    complete: bool
    received: Bytes = 0
    """Bytes of files that came over the network."""
    had: Bytes = 0
    """Bytes of files that it had already."""
    sent: Bytes = 0
    """Bytes of files that it has given to others."""
    seconds: float = 0.0
    reason: Text = ""
    """Why it is not complete."""


# ------------------------------------------------------------- from the one that sends


class Offer(Exchanged):
    """These files are to be had, and are to go on to the hosts of `route`, in this order. `Entries` follow."""

    id: Annotated[str, Meta(min_length=8, max_length=64, pattern="^[0-9a-f]+$")]
    """Of the whole delivery: a second offer of it goes on with the first."""
    name: Annotated[str, Meta(max_length=255)]
    """Of the folder that they are in; empty for a single file."""
    host: Place
    """What the one that is asked is called."""
    route: Annotated[list[Place], Meta(max_length=MOST_HOSTS)]
    files: Annotated[int, Meta(ge=1, le=MOST_FILES)]
    first: bool
    """Whether it comes from where the data is from, so that no other sender goes on if this one is lost."""


class Entries(Exchanged):
    """Some of the files; as many messages as it takes to name all."""

    entries: Annotated[list[Entry], Meta(max_length=BATCH)]


class Piece(Exchanged):
    """Bytes of a file, which follow."""

    file: Number
    offset: Bytes
    size: Annotated[int, Meta(ge=1, le=BLOCK)]


class Finished(Exchanged):
    """All that was lacking has been sent."""


class Alive(Exchanged):
    """Nothing new yet."""


class Failed(Exchanged):
    """It cannot go on."""

    reason: Text
    replaced: bool = False
    """Because another one goes on in its place."""


# ------------------------------------------------------------- from the one that receives


class Lacks(Exchanged):
    """Files that are not whole here, and how much of each there is; as many messages as it takes."""

    files: Annotated[list[tuple[Number, Bytes]], Meta(max_length=BATCH)]
    more: bool


class Report(Exchanged):
    """How it went here and behind here."""

    outcomes: Annotated[list[Outcome], Meta(max_length=MOST_HOSTS)]


# ------------------------------------------------------------- how fast links are


class Probe(Exchanged):
    """So many bytes follow, which mean nothing. Answered by `Alive`."""

    size: Annotated[int, Meta(ge=1, le=MOST_PROBE)]


class Measure(Exchanged):
    """Send probes to that host. Answered by `Measured`."""

    host: Place


class Measured(Exchanged):
    """The speed of a link; None if there is none, for this reason."""

    bytes_s: float | None
    reason: Text = ""


# ------------------------------------------------------------- a store at a host that serves it


class Ask(Exchanged):
    """Which files of this store are there? Answered by `Entries` until `Finished`, or by `Failed`."""

    name: Annotated[str, Meta(max_length=255)]
    """Empty for the only one."""


class Get(Exchanged):
    """Send the rest of this file, of those that were named last. Answered by pieces."""

    file: Number
    offset: Bytes


ANY: Any = Union[tuple(Exchanged.__subclasses__())]  # noqa: UP007 - of a tuple
decode: Callable[[bytes], Exchanged] = msgspec.json.Decoder(ANY).decode
