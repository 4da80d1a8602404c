"""One run over several hosts: the same command on each of them, at one agreed address.

The host that has the address coordinates; the others find it there, are numbered in the order in which they come, and
watch over their own workers. Every worker keeps a connection of its own to the coordinator.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cordee.core import interrupts
from cordee.core.errors import (
    CoordinatorLost,
    CordeeError,
    Interrupted,
    RendezvousError,
    SecurityError,
    UsageError,
    WorkerFailed,
)
from cordee.core.interrupts import Interrupts
from cordee.core.world import World
from cordee.diagnose.network import holders, judge_port
from cordee.group.channel import Silence
from cordee.group.protocol import BEAT_S, HUB_SILENCE_S
from cordee.group.token import default_token_file, read_token, write_token
from cordee.group.wire import Address, Connection, Message, connect
from cordee.runtime.coordinator.controller import Controller
from cordee.runtime.coordinator.hub import Hub
from cordee.runtime.coordinator.policy import how_it_ended
from cordee.runtime.engines.local import LocalEngine
from cordee.runtime.engines.seam import Engine, Notices, Seat
from cordee.runtime.join import own_address_towards
from cordee.runtime.launch import Launch
from cordee.runtime.recorder import Listener, Recorder
from cordee.runtime.spec import WorkerSpec
from cordee.runtime.start import run

WORD_EVERY_S = 10.0
LOOK_S = 0.2
PATIENCE_S = 600.0
"""How long hosts wait for each other: the same command is rarely typed everywhere at once."""


@dataclass(frozen=True)
class Meeting:
    """Where the hosts of a run meet, and what they need for it."""

    host: str
    port: int
    nodes: int
    token_file: Path | None = None
    trusted_network: bool = False

    @classmethod
    def parse(cls, rendezvous: str, nodes: int, token_file: Path | None, trusted_network: bool) -> Meeting:
        """From the command line."""
        host, _, port = rendezvous.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError(f"--rendezvous {rendezvous}: expected HOST:PORT, such as 192.0.2.7:29400")
        if nodes < 1:
            raise UsageError(f"--nodes {nodes}: at least 1 is needed")
        return cls(host, int(port), nodes, token_file, trusted_network)

    def address(self) -> Address:
        """The coordinator's address with the token, if everything that protects it is there."""
        try:
            ip = socket.getaddrinfo(self.host, self.port, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
        except OSError as error:
            raise RendezvousError(f"--rendezvous {self.host}: this name has no address here ({error})") from error
        loopback = ipaddress.ip_address(ip).is_loopback
        if not loopback and not self.trusted_network:
            raise SecurityError(
                f"{self.host} is not this machine alone. Our own connections are encrypted, but gloo's carry gradients "
                "in the clear, for every program that can reach its ports. If the network is trusted, say so: "
                "--trusted-network"
            )
        return Address(str(ip), self.port, read_token(self._token_path(loopback)), tls=not loopback)

    def _token_path(self, loopback: bool) -> Path:
        path = self.token_file or default_token_file()
        if not path.exists() and loopback and self.token_file is None:
            write_token(path)
        return path


def run_on_hosts(launch: Launch, meeting: Meeting, listen: Listener) -> dict[str, Any]:
    """This host's part of a run over several; the coordinator returns the result, the others an empty one."""
    if meeting.nodes == 1:
        return run(launch, listen)  # no other host is to come
    with interrupts.counted() as signals:
        address = meeting.address()
        launch.check_here()
        launch.settle(lambda message: listen({"event": "warning", "message": message}))
        brief = {"settings": launch.taken_over}
        interrupts.check()
        try:
            hub = Hub(address, expected=0, nodes=meeting.nodes, workers_here=launch.workers, brief=brief)
        except RendezvousError as error:
            return _follow(launch, address, listen, error.__cause__, signals)
        return _coordinate(launch, hub, meeting.nodes, listen, signals)


def _coordinate(launch: Launch, hub: Hub, nodes: int, listen: Listener, signals: Interrupts) -> dict[str, Any]:
    with contextlib.ExitStack() as ends:
        ends.callback(hub.close)
        recorder = launch.recorder(listen)
        ends.callback(recorder.close)
        engine = LocalEngine(hub.notices, partial(launch.spec, hub.address, hub.address.host), launch.output)
        ends.callback(engine.close)

        def begin() -> None:
            total = _await_hosts(hub, nodes, recorder)
            launch.plan.check(total)
            launch.begin(recorder, total)
            engine.start(_seats_here(0, launch.workers, total))

        return Controller(launch, hub, engine, recorder).watch(begin, signals)


class _Patience:
    """How long a host has waited for the others, and what it says of it meanwhile."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._began = time.monotonic()
        self._told = -WORD_EVERY_S
        self._last = ""

    @property
    def left_s(self) -> float:
        return PATIENCE_S - (time.monotonic() - self._began)

    def wait(self, what: str) -> None:
        """Say what is awaited: at once when it changes, otherwise now and then."""
        waited = time.monotonic() - self._began
        if what != self._last or waited - self._told >= WORD_EVERY_S:
            self._told, self._last = waited, what
            self._say(f"{what}, {waited:.0f} s so far")


def _await_hosts(hub: Hub, nodes: int, recorder: Recorder) -> int:
    """Until all hosts are here; returns the number of workers."""
    patience = _Patience(lambda message: recorder.event("warning", message=message))
    here = 1
    while patience.left_s > 0:
        interrupts.check()  # a signal leaves a notice, and so ends the wait below
        patience.wait(f"waiting at {hub.address} for the other hosts: {here} of {nodes} hosts are here")
        try:
            kind, _, content = hub.notices.get(timeout=1.0)
        except queue.Empty:
            continue
        if kind == "assigned":
            return int(content["total"])
        if kind == "hosts" and content["here"] < nodes:
            here = int(content["here"])
    raise RendezvousError(
        f"only {here} of {nodes} hosts came to {hub.address} within {PATIENCE_S:.0f} s: start the same command on each "
        "of them"
    )


class _Link:
    """A following launcher's connection to the coordinator."""

    def __init__(self, address: Address, workers: int, host: str, patience: _Patience) -> None:
        who = {"role": "node", "number": -1, "host": host, "workers": workers}
        self._connection, welcome = _reach(address, who, patience)
        self.brief: Message = welcome.get("brief", {})
        self._turn = threading.Condition()
        self._writing = threading.Lock()
        self._silence = Silence(HUB_SILENCE_S if address.tls else None)
        self.assigned: Message | None = None
        self._hosts: Message | None = None
        self.ended: str | None = None
        """How the run ended: `farewell`, `lost`, or the reason why it was aborted."""
        for loop in (self._listen, self._beat):
            threading.Thread(target=loop, name="cordee-link", daemon=True).start()

    def send(self, message: Message) -> None:
        try:
            with self._writing:
                self._connection.send(message)
        except OSError:
            pass  # the listener sees it too

    def wait_assigned(self, patience: _Patience) -> Message:
        while self.assigned is None and self.ended is None and patience.left_s > 0:
            if self._hosts is not None:
                here, of = self._hosts["here"], self._hosts["of"]
                if here < of:
                    patience.wait(f"waiting for the other hosts: {here} of {of} hosts are here")
            interrupts.check()
            with self._turn:
                self._turn.wait(LOOK_S)
        if self.assigned is None:
            raise RendezvousError("the coordinator did not start the run: look there for the reason")
        return self.assigned

    def close(self) -> None:
        self.ended = self.ended or "farewell"
        self._connection.close()

    def _beat(self) -> None:
        while self.ended is None:
            self.send({"beat": "watching"})
            if self._silence.too_long():
                self._connection.close()
            time.sleep(BEAT_S)

    def _listen(self) -> None:
        while (message := self._connection.receive()) is not None:
            self._silence.heard()
            with self._turn:
                if "assign" in message:
                    self.assigned = message
                elif "hosts" in message:
                    self._hosts = message["hosts"]
                elif "farewell" in message:
                    self.ended = "farewell"
                elif "abort" in message:
                    self.ended = str(message["abort"])
                self._turn.notify_all()
        with self._turn:
            self.ended = self.ended or "lost"
            self._turn.notify_all()


def _reach(address: Address, who: Message, patience: _Patience) -> tuple[Connection, Message]:
    """Connect; the coordinator may be started a little later than we are."""
    while True:
        try:
            return connect(address, who)
        except RendezvousError as error:
            if "could not reach" not in str(error) or patience.left_s <= 0:
                raise
            interrupts.check()
            patience.wait(f"waiting for the host that has the address {address.host}")
            time.sleep(0.2)


def not_a_launcher(error: CordeeError, address: Address, cause: BaseException | None) -> CordeeError:
    """Why we could not join at an address; if we could not listen there either, because it is taken, by whom it is."""
    if not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
        return error  # it is another host's
    taken = judge_port(address.port, cause, holders(address.port))
    # An answer that is no message of ours is not from a peer without the token, but from another program.
    kind = type(error) if error.__cause__ is None else RendezvousError
    stop = "" if str(error).endswith("?") else "."
    return kind(f"{error}{stop} Port {taken.found}. {taken.advice}")


def _follow(
    launch: Launch, address: Address, listen: Listener, taken: BaseException | None, signals: Interrupts
) -> dict[str, Any]:
    notices: Notices = queue.SimpleQueue()

    def spec(seat: Seat) -> WorkerSpec:
        return launch.spec(address, own_address_towards(address.host, address.port), seat)

    engine = LocalEngine(notices, spec, launch.output)
    try:
        patience = _Patience(lambda message: listen({"event": "warning", "message": message}))
        try:
            link = _Link(address, launch.workers, socket.gethostname(), patience)
        except (RendezvousError, SecurityError) as error:
            raise not_a_launcher(error, address, taken) from error
        try:
            place = link.wait_assigned(patience)
            first, total = int(place["assign"]), int(place["total"])
            listen({"event": "warning", "message": _place(first, launch.workers, total)})
            launch = launch.told(link.brief.get("settings", {}))
            engine.start(_seats_here(first, launch.workers, total))
            _watch(link, engine, notices, signals)
            engine.wait(2.0)
        finally:
            link.close()
    finally:
        engine.close()
    if link.ended == "lost":
        raise CoordinatorLost(f"the coordinator at {address} is gone; the workers of this host were ended")
    if link.ended != "farewell":
        raise WorkerFailed(f"the run was ended: {link.ended}")
    return {}


def _place(first: int, workers: int, total: int) -> str:
    """Which workers of the run are on this host."""
    if workers == 1:
        return f"worker {first} is on this host, one of {total}"
    return f"workers {first} to {first + workers - 1} are on this host, of {total} in all"


def _seats_here(first: int, workers: int, total: int) -> list[Seat]:
    worlds = (World(first + local, total, local, workers, source="cordee") for local in range(workers))
    return [Seat(world.rank, world) for world in worlds]


def _watch(link: _Link, engine: Engine, notices: Notices, signals: Interrupts) -> None:
    """Tell the coordinator what becomes of this host's workers, until the run has ended."""
    while link.ended is None:
        if signals.count:
            raise Interrupted("stopped: the workers of this host were ended, and the other hosts go on without them")
        due = engine.look()
        try:
            kind, worker, content = notices.get(timeout=0.1 if due is None else due)
            if kind == "stopped":
                link.send({"lose": {"worker": worker, "reason": "it was stopped, and evicted"}})
            elif kind == "exited" and content["status"] != 0:
                link.send({"lose": {"worker": worker, "reason": how_it_ended(content["status"])}})
            elif kind == "nursery_gone":
                raise CordeeError("the process that starts workers was ended, and the workers with it")
        except queue.Empty:
            pass
