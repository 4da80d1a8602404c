"""Where commands reach a run that trains: a port on loopback, and a file in the run's folder that says which.

The file holds the address and a secret of its own, and only its owner can read it. So a command needs no more than the
folder, and whoever may not read the file is refused like any other stranger.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
from functools import partial
from pathlib import Path

import msgspec

from cordee.core.events import WarningEvent
from cordee.group.messages import Answer, Command, Evicted, Message, Welcome, Who
from cordee.group.strangers import Strangers
from cordee.group.wire import LOOPBACK, Address
from cordee.runtime.coordinator.server import Peer, Server
from cordee.runtime.notices import Commanded, Notices

FILE = "control.json"


class Way(msgspec.Struct):
    """What the file holds."""

    port: int
    secret: str
    pid: int
    """The launcher, which listens there."""


class Control:
    """Takes commands, and puts them among the notices of the coordinator's loop."""

    def __init__(self, folder: Path, notices: Notices) -> None:
        """Listen, and write the file; a folder that cannot hold it has no commands, and the run goes on."""
        self._notices, self._numbers = notices, itertools.count()
        self._strangers = Strangers("the port for commands", lambda event: notices.put((-1, event)))
        self._server = Server(Address(LOOPBACK, 0, secrets.token_hex(32)), self, self._strangers)
        address = self._server.address
        self._file = folder / FILE
        try:
            self._written = _write(self._file, Way(address.port, address.token, os.getpid()))
        except OSError as error:
            self._written = False
            notices.put(
                (-1, WarningEvent(f"no command (cordee scale) reaches this run: {self._file}: {error.strerror}"))
            )
        self._server.start()

    def close(self) -> None:
        """Remove the file and hang up; a second call does nothing."""
        if self._written:
            self._written = False
            with contextlib.suppress(OSError):
                self._file.unlink()
        self._server.close()

    # ------------------------------------------------------------- peers; see `Host`

    def admit(self, peer: Peer, who: Who) -> Welcome | Evicted:
        """A command, and nothing else: its secret is not the token of the run."""
        if peer.role != "command":
            self._strangers.refuse(LOOPBACK, "showed the secret for commands, and came as another peer")
            return Evicted("only commands come here")
        peer.number = next(self._numbers)
        return Welcome({})

    def came(self, peer: Peer, who: Who) -> None:
        """Its command comes next."""

    def heard(self, peer: Peer, message: Message) -> None:
        """Pass a command on."""
        if not isinstance(message, Command):
            raise ValueError(f"{type(message).__name__} is no command")
        self._notices.put((-1, Commanded(message, partial(self._answer, peer.number))))

    def gone(self, peer: Peer, reason: str) -> None:
        """It has its answer, or does not want it any more."""

    def broken(self, peer: Peer, error: Exception) -> None:
        """It sent what is no command."""
        self._server.drop(peer.number, Evicted("that is no command"), peer.role)
        self._strangers.refuse(LOOPBACK, "showed the secret for commands, and sent what is none")

    def _answer(self, number: int, answer: Answer) -> None:
        self._server.call(self._server.tell_one, "command", number, answer)


def _write(file: Path, way: Way) -> bool:
    """Whole or not at all, and never readable by others, not for a moment."""
    making = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    handle = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(msgspec.json.encode(way))
        making.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            making.unlink()
        raise
    return True
