"""Where hosts listen for data, and what lets them in: the token, and TLS off loopback."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cordee.core.errors import RendezvousError, UsageError
from cordee.group.bulk import Gone, Link, Listener, dial
from cordee.group.messages import Who
from cordee.group.token import default_token_file, read_token, write_token
from cordee.group.wire import Address

SILENCE_S = 20.0
"""A connection on which nothing comes for so long is taken for lost."""


@dataclass(frozen=True)
class Access:
    """The token of these hosts, and how long one of them may be silent."""

    token: str
    silence_s: float = SILENCE_S

    @classmethod
    def of(cls, token_file: str | Path | None, places: Sequence[str], silence_s: float = SILENCE_S) -> Access:
        """From the token's file; where all `places` are on loopback and none was named, this user's own is made."""
        path = Path(token_file) if token_file is not None else default_token_file()
        near = all(_is_loopback(_resolved(*split_place(one, listening=True))) for one in places)
        if token_file is None and near and not path.exists():
            with contextlib.suppress(UsageError):  # another process was quicker
                write_token(path)
        return cls(read_token(path), silence_s)

    def dial(self, place: str) -> Link:
        """Reach the host that listens at `place`; `Gone` if it is not there."""
        host, port = split_place(place)
        try:
            found = _resolved(host, port)
        except RendezvousError as error:
            raise Gone(str(error)) from error
        address = Address(found, port, self.token, tls=not _is_loopback(found))
        try:
            return dial(address, Who("node", socket.gethostname()), self.silence_s)
        except Gone as error:
            cause = error.__cause__ and error.__cause__.__cause__
            if isinstance(error.__cause__, RendezvousError) and isinstance(cause, OSError):
                raise Gone(f"it cannot be reached ({cause.strerror or cause})") from error
            raise

    def listen(self, place: str) -> Listener:
        """Listen at `place`; port 0 is one that is free."""
        host, port = split_place(place, listening=True)
        found = _resolved(host, port)
        try:
            return Listener(found, self.token, tls=not _is_loopback(found), silence_s=self.silence_s, port=port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise RendezvousError(f"{place} is in use by another program: choose another port") from error
            raise RendezvousError(
                f"cannot listen at {place}: {error.strerror}; name an address of this host"
            ) from error


def split_place(text: str, *, listening: bool = False) -> tuple[str, int]:
    """Host and port of `HOST:PORT`."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    least = 0 if listening else 1
    if not host or not (port.isascii() and port.isdigit()) or not least <= int(port) < 65536:
        raise UsageError(f"{text!r}: expected HOST:PORT, such as 192.0.2.7:29500")
    return host, int(port)


def _resolved(host: str, port: int) -> str:
    """An address of a host, of IPv4 where it has one."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise RendezvousError(f"{host} has no address here ({error}): check the name, or give a number") from error
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    return str(found[0][4][0])


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
