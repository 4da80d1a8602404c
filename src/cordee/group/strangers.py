"""Connections that are refused because they did not show the token, or did not speak as peers do: counted, and told.

Anybody who reaches a port can try as often as it likes, so neither memory nor the record grows with the attempts: what
is told of each kind is the first one, the tenth, the hundredth and so on, and at the end how many they were.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable

from cordee.core.events import StrangerEvent
from cordee.group.wire import Cut, TooLong

MOST_KINDS = 16
"""Pairs of address and reason that are told apart; further addresses are one."""
OTHERS = "other addresses"
CROWDED = "came while too many others had not shown the token"
PEER = "showed the token, and then sent what no peer sends"


class Unproven(ValueError):
    """What the other end has shown does not prove that it knows the token."""


class Strangers:
    """Counts what one listener refused; any thread may."""

    def __init__(self, listener: str, post: Callable[[StrangerEvent], None]) -> None:
        """`listener`: what listens, such as `the coordinator`; `post` takes what is for the record."""
        self._listener, self._host, self._post = listener, socket.gethostname(), post
        self._counts: dict[tuple[str, str], int] = {}
        self._told: dict[tuple[str, str], int] = {}
        self._turn = threading.Lock()

    def refuse(self, address: str, reason: str) -> None:
        """A connection from there was refused."""
        with self._turn:
            kind = (address, reason)
            if kind not in self._counts and len(self._counts) >= MOST_KINDS:
                kind = (OTHERS, reason)
            count = self._counts[kind] = self._counts.get(kind, 0) + 1
            if count == 10 ** (len(str(count)) - 1):
                self._tell(kind)

    def tell(self) -> None:
        """Now that the run ends: of each kind, how many they were."""
        with self._turn:
            for kind, count in self._counts.items():
                if count != self._told[kind]:
                    self._tell(kind)

    def _tell(self, kind: tuple[str, str]) -> None:
        self._told[kind] = self._counts[kind]
        self._post(StrangerEvent(self._listener, self._host, *kind, self._counts[kind]))


def why(error: BaseException) -> str:
    """Why a connection was refused: one of a few texts, none of which holds what the other end sent."""
    while isinstance(error, ConnectionError) and error.__cause__ is not None:
        error = error.__cause__
    match error:
        case Unproven():
            return "did not show that it knows the token"
        case TooLong():
            return "announced a message that is too long"
        case Cut():
            return "hung up in the middle of a message"
        case ssl.SSLError():
            return "did not come to terms over TLS"
        case ValueError() | RecursionError():
            return "sent what is no message"
        case TimeoutError() | asyncio.TimeoutError() | ConnectionAbortedError():  # the last one: of a TLS handshake
            return "did not show the token in time"
    return "hung up before it showed the token"
