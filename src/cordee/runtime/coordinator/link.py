"""Between a launcher and the process that coordinates its run: a private socket, frames of JSON, one way and the other.

What the coordinator says is written before any peer of it hears what follows: the kernel keeps it, also when the
process is killed the next moment.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, Union

import msgspec

from cordee.core.errors import CordeeError
from cordee.core.events import ANY_EVENT, Event
from cordee.group.messages import ANY_MESSAGE, Again, Evicted, Message, Seat, Start, Welcome
from cordee.group.wire import HEADER, Address, length_of, pack, unpack
from cordee.runtime.coordinator.holders import Servers
from cordee.runtime.coordinator.known import Known
from cordee.runtime.coordinator.tickets import Tickets
from cordee.runtime.notices import Notice

T = TypeVar("T")
if TYPE_CHECKING:
    AnyEvent = Event
    AnyMessage = Message
    AnyNotice = Notice
else:
    AnyEvent, AnyMessage, AnyNotice = ANY_EVENT, ANY_MESSAGE, Union[tuple(Notice.__subclasses__())]  # noqa: UP007


class Frame(msgspec.Struct, omit_defaults=True):
    """What the coordinator says: a notice of one of three kinds, how the run stands now, or only that it is there."""

    worker: int = -1
    event: AnyEvent | None = None
    message: AnyMessage | None = None
    notice: AnyNotice | None = None
    defect: str = ""
    """An error that ends the run."""
    known: Known | None = None
    """If that is not what it was."""
    pid: int = 0
    """Of this process; in the first frame."""


class Call(msgspec.Struct, tag_field="call", tag=str.lower):
    """What the launcher says; `call` holds its kind."""


class Begin(Call):
    """Coordinate, from here on; the first call."""

    address: Address
    known: Known
    folder: str
    standing: AnyMessage | None
    tickets: Tickets | None


class Gone(Call):
    """A worker is gone."""

    worker: int
    reason: str


class Invite(Call):
    """A worker is about to be started at its place, and shall come in between two steps."""

    seat: Seat


class AskToLeave(Call):
    """A worker shall leave after the step that it is in."""

    worker: int
    reason: str


class LetIn(Call):
    """The answer to hosts that enter the run, now that it has begun."""

    late: Welcome | Evicted


class Halt(Call):
    """All workers shall end: after their step, or at once."""

    reason: str
    at_once: bool
    again: Again | None = None


class StartOn(Call):
    """The launcher of another host shall start these."""

    node: int
    start: Start


class Expect(Call):
    """These parameter servers are about to be started."""

    servers: Servers
    persist: bool


class Leave(Call):
    """A host is gone, for certain, or the run continues without it if enough others agree."""

    host: int
    reason: str
    certain: bool


class HearOut(Call):
    """Answer when all has been read that ended workers said."""

    seconds: float


decode_frame: Callable[[bytes], Frame] = msgspec.json.Decoder(Frame).decode
decode_call: Callable[[bytes], Call] = msgspec.json.Decoder(Union[tuple(Call.__subclasses__())]).decode  # noqa: UP007


class Line:
    """One end of the link."""

    def __init__(self, sock: socket.socket) -> None:
        """Over a connected socket, which is ours now."""
        self.sock = sock
        self._writing = threading.Lock()

    def send(self, value: Frame | Call) -> None:
        """Any thread may; `OSError` if the other end is gone."""
        with self._writing:
            self.sock.sendall(pack(value))

    def receive(self, decode: Callable[[bytes], T]) -> T | None:
        """The next value; None at the end."""
        head = self._exactly(HEADER.size)
        if head is None:
            return None
        body = self._exactly(length_of(head))
        return None if body is None else unpack(head, body, decode)

    def _exactly(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self.sock.recv(count - len(parts))
            except OSError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)


class Queue:
    """In the place of the queue that a hub puts its notices into: a link to the launcher."""

    def __init__(self, line: Line) -> None:
        """Nothing is written yet."""
        self._line = line

    def put(self, notice: tuple[int, Any, Known | None]) -> None:
        """Write it now, with how the run stands if that has changed."""
        worker, what, known = notice
        frame = Frame(worker, known=known)
        match what:
            case Event():
                frame.event = what
            case Message():
                frame.message = what
            case Notice():
                frame.notice = what
            case CordeeError():
                frame.defect = str(what)
        self._line.send(frame)
