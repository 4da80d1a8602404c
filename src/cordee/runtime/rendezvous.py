"""Where the hosts of a run meet, and how they wait for each other: the same command on each, at one agreed address.

The host that has the address coordinates. The others find it there, and are numbered by their names.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import queue
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from cordee.core import interrupts
from cordee.core.errors import CordeeError, RendezvousError, SecurityError, UsageError
from cordee.diagnose.network import judge_port
from cordee.group.messages import Present
from cordee.group.token import default_token_file, read_token, write_token
from cordee.group.wire import Address
from cordee.runtime.coordinator.supervised import Coordinator
from cordee.runtime.wording import COMMAND, Wording

WORD_EVERY_S = 10.0
LOOK_S = 0.2
PATIENCE_S = 600.0
"""How long hosts wait for each other: the same command is rarely typed everywhere at once."""
BACK_S = 60.0
"""How long they do where they come back to a run that continues."""

SAME_COMMAND = "start the same command on each of them"

T = TypeVar("T")


@dataclass(frozen=True)
class Rendezvous:
    """Where the hosts of a run meet, and what they need for it."""

    host: str
    port: int
    nodes: int
    token_file: Path | None = None
    trusted_network: bool = False
    token: str = field(default="", repr=False)
    """The token itself, of a run whose hosts an engine gives; empty: it is in the file."""

    @classmethod
    def parse(
        cls,
        rendezvous: str | None,
        nodes: int | None,
        token_file: str | Path | None,
        trusted_network: bool,
        wording: Wording = COMMAND,
    ) -> Rendezvous | None:
        """From what the user gave; None for a run on this host alone."""
        if rendezvous is None:
            if nodes not in (None, 1):
                where = f"{wording.option('rendezvous')} HOST:PORT"
                raise UsageError(f"{wording.option('nodes', nodes)} needs {where}, where the hosts meet")
            return None
        given = wording.option("rendezvous", rendezvous)
        if nodes is None:
            raise UsageError(f"{given} needs {wording.option('nodes')}, the number of hosts that meet there")
        host, _, port = rendezvous.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"{given}: expected HOST:PORT, such as 192.0.2.7:29400")
        if nodes < 1:
            raise UsageError(f"{wording.option('nodes', nodes)}: at least 1 is needed")
        return cls(host, int(port), nodes, Path(token_file) if token_file else None, trusted_network)

    def address(self, wording: Wording = COMMAND) -> Address:
        """The coordinator's address with the token, if everything that protects it is there."""
        try:
            ip = socket.getaddrinfo(self.host, self.port, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
        except OSError as error:
            given = wording.option("rendezvous", self.host)
            raise RendezvousError(f"{given}: this name has no address here ({error})") from error
        loopback = ipaddress.ip_address(ip).is_loopback
        if not loopback and not self.trusted_network:
            raise SecurityError(
                f"{self.host} is not this machine alone. Our own connections are encrypted, but gloo's carry gradients "
                "in the clear, for every program that can reach its ports. If the network is trusted, say so: "
                f"{wording.flag('trusted_network')}"
            )
        if self.token:
            return Address(str(ip), self.port, self.token, tls=not loopback)
        path = self.token_file or default_token_file()
        if not path.exists() and loopback and self.token_file is None:
            with contextlib.suppress(UsageError):  # another launcher on this machine was quicker
                write_token(path)
        return Address(str(ip), self.port, read_token(path), tls=not loopback)


class HostWait:
    """How long a host has waited for the others, and what it says of it meanwhile."""

    def __init__(self, say: Callable[[str], None], patience_s: float = PATIENCE_S) -> None:
        """The time begins now; `say` tells the user."""
        self._say, self._patience_s = say, patience_s
        self._began = time.monotonic()
        self._told = -WORD_EVERY_S
        self._last = ""

    @property
    def left_s(self) -> float:
        """How much longer to wait."""
        return self._patience_s - (time.monotonic() - self._began)

    def tell(self, what: str) -> None:
        """Say what is awaited: at once when it changes, otherwise now and then."""
        waited = time.monotonic() - self._began
        if what != self._last or waited - self._told >= WORD_EVERY_S:
            self._told, self._last = waited, what
            self._say(f"{what}, {waited:.0f} s so far")

    def reach(self, connect: Callable[[], T], what: str) -> T:
        """Connect to a host that may be started a little later."""
        while True:
            try:
                return connect()
            except RendezvousError as error:
                if not isinstance(error.__cause__, OSError) or self.left_s <= 0:
                    raise
                interrupts.check()
                self.tell(what)
                time.sleep(LOOK_S)


def await_hosts(
    hub: Coordinator,
    nodes: int,
    say: Callable[[str], None],
    patience: tuple[float, str] = (PATIENCE_S, SAME_COMMAND),
) -> list[int]:
    """Until all hosts are here; returns the number of workers of each, in their order.

    `patience`: for how many seconds, and what to do when some have not come then.
    """
    patience_s, advice = patience
    wait = HostWait(say, patience_s)
    here = 1
    while wait.left_s > 0:
        interrupts.check()  # a signal leaves a notice, and so ends the wait below
        wait.tell(f"waiting at {hub.address} for the other hosts: {here} of {nodes} hosts are here")
        try:
            _, notice = hub.notices.get(timeout=1.0)
        except queue.Empty:
            continue
        if isinstance(notice, Present):
            here = notice.here
            if here == nodes:
                return hub.hosts.counts
        elif isinstance(notice, CordeeError):
            raise notice
    raise RendezvousError(f"only {here} of {nodes} hosts came to {hub.address} within {patience_s:.0f} s: {advice}")


def not_a_launcher(error: CordeeError, address: Address, cause: BaseException | None) -> CordeeError:
    """Why we could not join at an address; if we could not listen there either, as it is taken, by which process."""
    if not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
        return error  # it is another host's
    taken = judge_port(address.port, cause)
    # An answer that is no message of ours is not from a peer without the token, but from another program.
    kind = type(error) if error.__cause__ is None else RendezvousError
    stop = "" if str(error).endswith("?") else "."
    return kind(f"{error}{stop} Port {taken.found}. {taken.advice}")
