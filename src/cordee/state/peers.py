"""Parts of a checkpoint on their way into the memory of another host; see `apart.py`. Nothing here loads torch."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from cordee.core.machine import available_memory
from cordee.group.bulk import Gone, Link
from cordee.state.apart import TOKEN, Part

ROOM = 2
"""Of what a part takes, so much must be free: a host that runs out of memory loses more than a copy."""
MOST_TEXT = 256 << 20
"""Longer descriptions are refused."""


class Offer(msgspec.Struct, forbid_unknown_fields=True):
    """A part that may be sent."""

    step: int
    token: str
    number: int
    text: int
    """Bytes of its description, and of its tensors."""
    tensors: int


class Reply(msgspec.Struct, forbid_unknown_fields=True):
    """What becomes of it."""

    wanted: bool
    """Whether its bytes shall come; afterwards: whether they stand."""
    reason: str = ""
    """Why not, if the other end should know."""


decode_offer = msgspec.json.Decoder(Offer).decode
decode_reply = msgspec.json.Decoder(Reply).decode


def send_part(link: Link, folder: Path, part: Part) -> str:
    """Give a part that is there to the other end; why it was not taken, empty if it has it now. `Gone` if it left."""
    text = part.description(folder).read_bytes()
    with _mapped(part.tensors(folder)) as content:
        link.send(Offer(part.step, part.token, part.number, len(text), len(content)))
        reply = link.receive(decode_reply)
        if reply.wanted:
            link.send(reply, [memoryview(text), content])
            reply = link.receive(decode_reply)
    return reply.reason


def take_parts(link: Link, folder: Path) -> None:
    """Take what comes until the other end hangs up, which raises `Gone`."""
    while True:
        offer = link.receive(decode_offer)
        sizes = (offer.step, offer.number, offer.text, offer.tensors)
        if (offer.token and not TOKEN.fullmatch(offer.token)) or min(sizes) < 0 or offer.text > MOST_TEXT:
            raise Gone("it offered what is no part of a state")
        part = Part(offer.step, offer.token, offer.number)
        if part.is_there(folder):
            link.send(Reply(False))
        elif (free := available_memory()) < ROOM * offer.tensors:
            link.send(Reply(False, f"it has {free >> 20:,} MiB of memory left, for a part of {offer.tensors >> 20:,}"))
        else:
            link.send(Reply(True))
            link.receive(decode_reply)
            _take(link, folder, part, offer)
            link.send(Reply(True))


def _take(link: Link, folder: Path, part: Part, offer: Offer) -> None:
    part.place(folder).mkdir(parents=True, exist_ok=True)
    text = bytearray(offer.text)
    with part.tensors(folder).open("wb") as file:
        if offer.tensors:  # now: to write into memory that is not there ends the process
            os.posix_fallocate(file.fileno(), 0, offer.tensors)
    with _mapped(part.tensors(folder), write=True) as tensors:
        link.receive_into([memoryview(text), tensors])
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Gone(str(error)) from error
    part.describe(folder, content)


@contextlib.contextmanager
def _mapped(path: Path, *, write: bool = False) -> Iterator[memoryview]:
    """The bytes of a file, as memory."""
    with path.open("r+b" if write else "rb") as file:
        if not path.stat().st_size:
            yield memoryview(b"")
            return
        access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
        # Not closed by us: an error on its way up holds views of it.
        yield memoryview(mmap.mmap(file.fileno(), 0, access=access))
