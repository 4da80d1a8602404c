"""Workers on several hosts. Each host has a launcher, which starts its workers when the coordinator says so."""

from __future__ import annotations

import contextlib
import itertools
import queue
import socket
from collections.abc import Callable, Iterable

from cordee.core import interrupts
from cordee.core.errors import CoordinatorLost, CordeeError, Interrupted, RendezvousError, WorkerFailed
from cordee.core.interrupts import Interrupts
from cordee.core.world import World
from cordee.group.client import Client
from cordee.group.wire import Address, Message, own_address_towards
from cordee.runtime.coordinator.hub import Hub
from cordee.runtime.coordinator.policy import how_it_ended
from cordee.runtime.engines.local import LocalEngine
from cordee.runtime.engines.seam import Engine, Notices, Seat
from cordee.runtime.launch import Launch
from cordee.runtime.rendezvous import HostWait
from cordee.runtime.spec import WorkerSpec

LOOK_S = 0.1
"""How often a host looks whether a signal has come."""
END_S = 2.0
"""How long workers may take to end after the run has ended."""
NOT_STARTED = "the coordinator did not start the run: look there for the reason"


class HostsEngine:
    """Starts workers on several hosts: on this one itself, on the others through their launchers."""

    def __init__(self, local: Engine, hub: Hub) -> None:
        """`local` starts the workers of this host, node 0; the launchers of the others are connected to `hub`."""
        self._local, self._hub = local, hub
        self._nodes: dict[int, int] = {}
        self.look, self.wait, self.exit_code, self.close = local.look, local.wait, local.exit_code, local.close
        """Of this host: the others look after their own workers, say what became of them, and end with the run."""

    def start(self, seats: Iterable[Seat]) -> None:
        """A launcher gives each worker what its own host has: cores, a device, a folder, an environment."""
        for node, group in itertools.groupby(seats, lambda seat: seat.world.node):
            there = list(group)
            self._nodes |= {seat.worker: node for seat in there}
            if node == 0:
                self._local.start(there)
            else:
                self._hub.tell_host(node, {"start": [{**vars(seat), "world": seat.world.to_env()} for seat in there]})

    def stop(self, workers: Iterable[int]) -> None:
        """On their hosts."""
        for node, group in itertools.groupby(workers, lambda worker: self._nodes.get(worker, 0)):
            if node == 0:
                self._local.stop(group)
            else:
                self._hub.tell_host(node, {"end": list(group)})


class Follower:
    """The launcher of a host that does not coordinate."""

    def __init__(
        self, launch: Launch, address: Address, say: Callable[[str], None], sent_job: bytes | None = None
    ) -> None:
        """Connect to the coordinator at `address`, which may be started a little later; `say` tells the user."""
        self._launch, self._address, self._say = launch, address, say
        self._notices: Notices = queue.SimpleQueue()
        self._started = False
        self._awaited = ""
        # Made now, as its server imports while hosts wait for each other.
        self._engine = LocalEngine(self._notices, self._spec, launch.output, sent_job)
        who = {"role": "node", "number": -1, "host": socket.gethostname(), "workers": launch.workers}
        self._wait = HostWait(say)
        try:
            waited = f"waiting for the host that has the address {address.host}"
            self._client = self._wait.reach(lambda: Client(address, who, self._hear, self._lost), waited)
        except BaseException:
            self._engine.close()
            raise
        self._client.at = "watching"
        self._client.start()
        self._launch = launch.told(self._client.brief.get("settings", {}))

    def watch(self, signals: Interrupts) -> None:
        """Start workers and say what becomes of them, until the run has ended; raises what ended it early."""
        try:
            while not self._take(signals):
                pass
            self._engine.wait(END_S)
        finally:
            self._client.close()
            self._engine.close()

    def _take(self, signals: Interrupts) -> bool:
        """Take the next message or notice, or wait a moment for it; True when the run has ended."""
        if signals.count and not self._started:
            raise Interrupted(interrupts.EARLY)
        if signals.count:
            raise Interrupted("stopped: the workers of this host were ended, and the other hosts go on without them")
        if not self._started and self._wait.left_s <= 0:
            raise RendezvousError(NOT_STARTED)
        if not self._started and self._awaited:
            self._wait.tell(self._awaited)
        due = self._engine.look()
        with contextlib.suppress(queue.Empty):
            kind, worker, content = self._notices.get(timeout=LOOK_S if due is None else due)
            if kind == "stopped":
                self._client.send({"lose": {"worker": worker, "reason": "it was stopped, and evicted"}})
            elif kind == "exited" and content["status"] != 0:
                self._client.send({"lose": {"worker": worker, "reason": how_it_ended(content["status"])}})
            elif kind == "not_started":
                self._client.send({"lose": {"worker": worker, "reason": f"could not be started: {content['reason']}"}})
            elif kind == "engine_gone":
                raise CordeeError("the process that starts workers was ended, and the workers with it")
            elif kind == "coordinator":
                return self._obey(content)
        return False

    def _obey(self, message: Message) -> bool:
        if "hosts" in message:
            here, of = message["hosts"]["here"], message["hosts"]["of"]
            self._awaited = f"waiting for the other hosts: {here} of {of} hosts are here" if here < of else ""
        elif "start" in message:
            self._started = True
            seats = [Seat(**{**seat, "world": World.from_env(seat["world"])}) for seat in message["start"]]
            self._say(which_workers(seats))
            self._engine.start(seats)
        elif "end" in message:
            self._engine.stop(message["end"])
        elif ("abort" in message or "connection" in message) and not self._started:
            raise RendezvousError(NOT_STARTED)
        elif "abort" in message:
            raise WorkerFailed(f"the run was ended: {message['abort']}")
        elif "connection" in message:
            raise CoordinatorLost(f"the coordinator at {self._address} is gone; the workers of this host were ended")
        return "farewell" in message

    def _hear(self, message: Message) -> None:
        self._notices.put(("coordinator", -1, message))

    def _lost(self, how: str) -> None:
        self._notices.put(("coordinator", -1, {"connection": how}))

    def _spec(self, seat: Seat) -> WorkerSpec:
        interface = own_address_towards(self._address.host, self._address.port)
        return self._launch.spec(self._address, interface, seat)


def which_workers(seats: list[Seat]) -> str:
    """Which workers of the run are on this host."""
    total = seats[0].world.size
    if len(seats) == 1:
        return f"worker {seats[0].worker} is on this host, one of {total}"
    return f"workers {seats[0].worker} to {seats[-1].worker} are on this host, of {total} in all"
