"""Workers on several hosts. Each host has a launcher, which starts its workers when the coordinator says so."""

from __future__ import annotations

import contextlib
import itertools
import queue
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import msgspec

from cordee.core import interrupts
from cordee.core.errors import (
    CoordinatorLost,
    CordeeError,
    CutOff,
    Evicted,
    Interrupted,
    RendezvousError,
    WorkerFailed,
    WorkersLost,
)
from cordee.core.interrupts import Interrupts
from cordee.core.words import plural
from cordee.group import messages
from cordee.group.client import Client, Found
from cordee.group.messages import FIRST_SERVER, Message, Place, Seat
from cordee.group.wire import Address, own_address_towards
from cordee.runtime.coordinator.joining import refuses_departures
from cordee.runtime.coordinator.known import Known, unpack_known
from cordee.runtime.coordinator.lease import is_shared
from cordee.runtime.coordinator.server import listen
from cordee.runtime.coordinator.supervised import Coordinator
from cordee.runtime.coordinator.tickets import Tickets, told
from cordee.runtime.engines.local import LocalEngine, engine_for
from cordee.runtime.engines.seam import Engine
from cordee.runtime.folder import end_of
from cordee.runtime.keeping import Kept
from cordee.runtime.launch import Continued, Launch, continued
from cordee.runtime.notices import Notices, NotStarted
from cordee.runtime.rendezvous import BACK_S, PATIENCE_S, HostWait
from cordee.runtime.spec import WorkerSpec

LOOK_S = 0.1
"""How often a host looks whether a signal has come."""
TURN_S = 6.0
"""How long each of the hosts before this one has to take over, before this one does."""
SURE_S = 8.0
"""After so much more time a coordinator that does not answer, though its host does, counts as gone: its launcher ends
one that is stopped, and starts another."""
END_S = 2.0
"""How long workers may take to end after the run has ended."""
EVICTED = "Look at the network of this host before you use it again"
STOPPED = "the run was ended: stopped after a step; the coordinator, at"
LEFT = "this host was asked to stop: its workers have left, and the others continue without it"
NOT_STARTED = "the coordinator did not start the run: look there for the reason"


class HostsEngine:
    """Starts workers on several hosts: on this one itself, on the others through their launchers."""

    def __init__(
        self,
        local: Engine,
        hub: Coordinator,
        keeper: Place | None,
        node: int = 0,
        others: Callable[[float], bool] = lambda seconds: True,
    ) -> None:
        """`local` starts the workers of this host, the `node`; the launchers of the others are connected to `hub`.

        `keeper`: where this host takes copies of the state. `others`: wait at most so long until other hosts have
        ended that this one has started; whether they have.
        """
        self._local, self._hub, self._keeper, self._node = local, hub, keeper, node
        self.look, self.how_it_ended = local.look, local.how_it_ended
        self.end, self.close = local.end, local.close
        """Of this host: the others look after their own workers, say what became of them, and end with the run."""
        self.wait = lambda seconds: others(seconds) and local.wait(seconds)

    def start(self, seats: Iterable[Seat]) -> None:
        """A launcher gives each worker what its own host has: cores, a device, a folder, an environment."""
        for node, group in itertools.groupby(seats, lambda seat: seat.world.node):
            if node == self._node:
                self._local.start(group)
            else:
                keeper = self._hub.hosts.keeper_after(node, self._keeper)
                self._hub.start_on(node, messages.Start(list(group), keeper))


class Follower:
    """The launcher of a host that does not coordinate, unless it has to: when the coordinator's host is gone."""

    def __init__(
        self,
        launch: Launch,
        address: Address,
        say: Callable[[str], None],
        sent_job: bytes | None,
        kept: Kept,
        former: LocalEngine | None = None,
    ) -> None:
        """Connect to the coordinator at `address`, which may be started a little later; `say` tells the user.

        `former` has started the workers of this host before, in a run that continues.
        """
        self.address, self._say, self.kept = address, say, kept
        """Where the coordinator is."""
        self.known: Known | None = None
        """What the next coordinator begins with, once all hosts have come."""
        self.gone: Mapping[int, bool] = {}
        """The hosts in whose place this one takes over: whether each has ended for certain. Empty: it does not."""
        self.tickets: Tickets | None = None
        """Which parts of windows are done, or handed out, as far as this host was told."""
        self._node = 0
        """The place of this host among the hosts."""
        self._again: messages.Again | None = None
        """How the run continues, of which every start ends with the connection to the coordinator."""
        self.notices: Notices = queue.SimpleQueue()
        self._started: set[int] = set()
        """The workers and servers that were started here."""
        self._awaited = ""
        self._asked = self._stopping = False
        """Whether a signal has come here, and whether the run was asked to end after a step, wherever one came."""
        # Made now, as its server imports while hosts wait for each other.
        self.engine = engine_for(former, self.notices, self._spec, (launch.output, sent_job, launch.takes_back))
        at = kept.place or messages.Place(0, "", "", 0)
        who = messages.Who(
            "node",
            socket.gethostname(),
            workers=launch.workers,
            interface=at.interface,
            port=at.port,
            joins=launch.enters,
            early=launch.engine is not None,
        )
        self._wait = HostWait(say, PATIENCE_S if launch.continued is None else BACK_S)
        try:
            interface = own_address_towards(address.host, address.port)
            self.listener = listen(interface, 0)
            self.door = interface, int(self.listener.getsockname()[1])
            if launch.engine is None:  # a place of an engine ends with the first host: it never coordinates
                who = msgspec.structs.replace(who, door=self.door)
            waited = f"waiting for the host that has the address {address.host}"
            self._client = self._wait.reach(lambda: Client(address, who, self._hear, self._lost), waited)
        except BaseException:
            self.engine.close()
            raise
        self._client.at, kept.tell = "watching", self._client.post
        self._client.stays = self._stays
        self._client.start()
        try:
            self.launch = launch.told(self._client.settings).entering(self._client.run)
        except BaseException:
            self._client.close()
            self.close()
            self.engine.close()
            raise

    def watch(self, signals: Interrupts) -> Launch | None:
        """Start workers and say what becomes of them, until the run has ended; raises what ended it early.

        Returns what to start on this host in a run that continues. If this host takes over, it returns before the run
        has ended, with the workers as they are.
        """
        try:
            while not self._take(signals):
                pass
            if self.gone:
                return None
            self.engine.wait(END_S)
            if self._again is not None:
                return continued(self.launch, self._again, self._node, Continued(0, ""))
            if self._stopping:
                raise Interrupted(f"{STOPPED} {self.address}, says how to go on")
            return None
        finally:
            self._client.close()
            if not self.gone:
                self.close()

    def close(self) -> None:
        """End the workers of this host; a second call does nothing."""
        self.engine.end()
        self.listener.close()

    @property
    def number(self) -> int:
        """This host's among the hosts."""
        return self._client.number

    @property
    def is_over(self) -> bool:
        """Whether the run's folder, if this host sees it, says that the run has ended, though not on our side alone."""
        out, run = self.launch.out, self.known.run if self.known else ""
        end = end_of(out) if is_shared(out, run) else None
        return end is not None and end.code != CutOff.code

    def _take(self, signals: Interrupts) -> bool:
        """Take the next message or notice, or wait a moment for it; True when the run has ended."""
        if signals.count and not self._started:
            raise Interrupted(interrupts.EARLY)
        if signals.count > 1:
            raise Interrupted("stopped: the workers of this host were ended, and the other hosts go on without them")
        if signals.count and not self._asked:
            self._asked = True
            self._ask()
        if self._asked and self._leaves and self.engine.wait(0):
            raise Evicted(LEFT)
        if not self._started and self._wait.left_s <= 0:
            raise RendezvousError(NOT_STARTED)
        if not self._started and self._awaited:
            self._wait.tell(self._awaited)
        due = self.engine.look()
        with contextlib.suppress(queue.Empty):
            worker, notice = self.notices.get(timeout=LOOK_S if due is None else due)
            match notice:
                case messages.Lose() | messages.Woke():
                    self._client.send(notice)
                case NotStarted(reason):
                    self._client.send(messages.Lose(worker, f"could not be started: {reason}"))
                case messages.Present(here, of):
                    self._awaited = f"waiting for the other hosts: {here} of {of} hosts are here" if here < of else ""
                case messages.Start(seats, keeper):
                    self.kept.send_to(keeper)
                    if new := [seat for seat in seats if seat.worker not in self._started]:  # else it is told again
                        self._start(new)
                case messages.Abort() | CoordinatorLost() if not self._started:
                    raise RendezvousError(NOT_STARTED)
                case messages.Abort(reason, again) if again is not None and not self._asked:
                    self._come_back(reason, again)
                case CoordinatorLost() if self._again is not None or self.gone:
                    return True
                case messages.Abort(reason):
                    raise (Interrupted if self._asked else WorkerFailed)(f"the run was ended: {reason}")
                case messages.Stop():
                    self._stopping = True
                case messages.Evicted(reason):
                    raise Evicted(f"this host was evicted, and the others continue without it: {reason}. {EVICTED}")
                case CordeeError():
                    raise notice
                case messages.Farewell():
                    return True
        return False

    @property
    def _leaves(self) -> bool:
        """Whether a signal is for this host alone: its place is about to be taken away, and the run goes on."""
        engine = self.launch.engine
        whole = engine is None or not engine.takes_one
        return not (whole or refuses_departures(self.launch.plan, self.launch.target.kind))

    def _ask(self) -> None:
        """A signal came to this host."""
        if self._leaves:
            for worker in sorted(one for one in self._started if one < FIRST_SERVER):
                self._client.send(messages.Leaving("its host was asked to stop", worker))
            self._say("the workers of this host leave after their step; once more to end them at once")
        else:
            self._client.send(messages.Asked())
            self._say("asked the coordinator to stop the run; once more to end the workers of this host at once")

    def _start(self, seats: list[Seat]) -> None:
        self._node = seats[0].world.node
        if not self._started and self.launch.workers == 0:
            self._say("this host computes nothing; it holds parameters for the others")
        self._started |= {seat.worker for seat in seats}
        if workers := [seat for seat in seats if not seat.serves]:
            numbers = ", ".join(str(seat.worker) for seat in workers)
            of_all = f", of {plural(workers[0].world.size, 'worker')} in all" * (not workers[0].joins)
            self._say(f"on this host{of_all}: {numbers}")
        self.engine.start(seats)

    def _come_back(self, reason: str, again: messages.Again) -> None:
        """The run has lost its last whole replica, and continues: once the coordinator has hung up, meet there anew."""
        if again.keeper is not None:
            self.engine.wait(END_S)  # until workers have written their last copies
            self.kept.bring(again.keeper)
        if self.launch.workers and not again.workers[self._node]:
            raise WorkersLost(f"no worker of this host is left, and the run continues without it: {reason}")
        self._say("the run has lost its last whole replica; this host continues it with the others")
        self._again = again

    def _hear(self, message: Message) -> None:
        match message:
            case messages.Known(state):
                self._learn(unpack_known(state))
                return
            case messages.Turned():
                self.tickets = told(self.tickets, message)
                return
            case messages.Without(host):
                if self.known is not None:
                    self._learn(replace(self.known, hosts=self.known.hosts.lose(host)))
                self._client.send(messages.Agreed(host))
                return
        if isinstance(message, messages.Abort | messages.Farewell):
            self._client.expect_end()
        self.notices.put((-1, message))

    def _learn(self, known: Known) -> None:
        """From now on this is what the next coordinator would begin with, if it is here."""
        self.known = known
        first, *_ = self._client.addresses
        doors = [door for door in known.doors() if door != self.door]
        self._client.addresses = [first, *(replace(first, host=host, port=port) for host, port in doors)]

    def _stays(self, seconds: float, found: Found) -> bool:
        """The coordinator is lost: whether to look for another one, or be it. The hosts do so in their order."""
        first = self._client.addresses[0]
        answer = found.get((first.host, first.port))
        refused = answer == "refused"
        if self.known is None or self.number not in self.known.heirs:  # perhaps one of the others does
            return not refused or (self.known is not None and bool(self.known.heirs))
        before = self.known.heirs[: self.known.heirs.index(self.number)]
        ended = [host for host in before if found.get(self.known.hosts.doors[host]) == "refused"]
        if seconds < (len(before) - len(ended)) * TURN_S + (SURE_S if answer == "there" else 0.0):
            return True
        self.gone = {**dict.fromkeys(ended, True), self.known.home: refused}
        return False

    def _lost(self, how: str) -> None:
        gone = f"the coordinator at {self.address} is gone; the workers of this host were ended"
        self.notices.put((-1, CoordinatorLost(gone)))

    def _spec(self, seat: Seat) -> WorkerSpec:
        address = self.address if self.gone else self._client.addresses[0]  # where the coordinator is now
        interface = own_address_towards(address.host, address.port)
        return self.kept.told(self.launch.spec(address, interface, seat))
