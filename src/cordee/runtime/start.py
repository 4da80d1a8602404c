"""Run to the end: the one way by which the command, `cordee.train` and measurements start a run."""

from __future__ import annotations

import contextlib
import queue
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from cordee.core import interrupts
from cordee.core.errors import RendezvousError, SecurityError
from cordee.core.events import Listener, WarningEvent
from cordee.core.interrupts import Interrupts
from cordee.core.world import World
from cordee.group.messages import Seat
from cordee.group.wire import Address, own_address_towards
from cordee.runtime.coordinator.control import Control
from cordee.runtime.coordinator.controller import Controller
from cordee.runtime.coordinator.joining import late_host
from cordee.runtime.coordinator.known import first_known
from cordee.runtime.coordinator.server import listen
from cordee.runtime.coordinator.state import Places
from cordee.runtime.coordinator.supervised import PATIENCE_S as FIND_S
from cordee.runtime.coordinator.supervised import Coordinator
from cordee.runtime.engines.hosts import Follower, HostsEngine
from cordee.runtime.engines.local import LocalEngine, engine_for
from cordee.runtime.engines.seam import Engine, seats
from cordee.runtime.keeping import Kept
from cordee.runtime.launch import Launch
from cordee.runtime.notices import Notices
from cordee.runtime.recorder import Recorder
from cordee.runtime.recovering import Recovery
from cordee.runtime.rendezvous import BACK_S, PATIENCE_S, SAME_COMMAND, await_hosts, not_a_launcher
from cordee.runtime.sent import pack_job
from cordee.runtime.spec import WorkerSpec
from cordee.runtime.takeover import take_over

if TYPE_CHECKING:
    from cordee.train.job import Job


class HostPlaces(Protocol):
    """Where an engine runs the other hosts of a run; called by the coordinator's thread."""

    patience_s: float
    """How long they may take to come, once they were started."""
    advice: str
    """What to do if they do not."""

    def all_came(self) -> None:
        """All hosts have come to the coordinator."""

    def wait(self, seconds: float) -> bool:
        """The run is about to end: wait at most so long until all hosts have ended; whether they have."""

    def begin(self, address: Address, notices: Notices) -> None:
        """Start a host in each place, which comes to this address; a start that continues the run gives other notices.

        What goes wrong is put into the notices: an error that ends the run, or a warning for the record.
        """


def enter(launch: Launch, say: Callable[[str], None]) -> None:
    """Enter a run of other hosts that has begun, with workers of this host, and stay until it ends."""
    assert launch.rendezvous is not None
    with interrupts.counted() as signals:
        address = launch.rendezvous.address(launch.wording)
        with Kept(False) as kept:
            _stay(launch, address, (say, lambda event: None, None, signals), kept)


def attend(launch: Launch, hear: Listener, sent_job: bytes | None) -> None:
    """Be the host that an engine gave a place to: start its workers, until the run ends on the first host."""
    assert launch.rendezvous is not None
    with interrupts.counted() as signals:
        address = launch.rendezvous.address(launch.wording)
        launch.check()
        launch.check_formats(say := lambda message: hear(WarningEvent(message)))
        _follow(launch, address, None, (say, hear, sent_job, signals))


def run(launch: Launch, hear: Listener, job: Job | None = None, places: HostPlaces | None = None) -> dict[str, Any]:
    """This process's part of a run; returns the result, or raises what ended it.

    It coordinates, unless another host does (then the result is empty), or another launcher started this process. A
    `job` that was made in this process is sent to its workers. `places`: where the other hosts of the run are.
    """
    world = World.from_env()
    if world.is_foreign and places is None:
        from cordee.runtime.engines.foreign import run_foreign

        return run_foreign(launch, world, hear, job)
    with interrupts.counted() as signals:
        address = launch.address()
        launch.check()
        launch.check_formats(say := lambda message: hear(WarningEvent(message)))
        sent_job = None if job is None else pack_job(job)
        interrupts.check()
        try:
            door = _open(address)
        except RendezvousError as error:
            if launch.nodes == 1:
                raise
            return _follow(launch, address, error, (say, hear, sent_job, signals))
        if launch.rendezvous is not None:  # the system may have chosen the port
            launch = replace(launch, rendezvous=replace(launch.rendezvous, port=door[1].port))
        beyond = address.host if launch.nodes > 1 else ""
        copies = Kept(launch.plan.copy_every > 0, beyond, address)
        with contextlib.closing(door[0]), copies as kept, contextlib.ExitStack() as ends:
            coordination = _Coordination(Recovery(launch, kept), hear, sent_job, signals, places)
            ends.callback(coordination.close)
            result, following = coordination.run(launch, door)
            while following is not None:
                result, following = coordination.run(following, _open(following.address()))
            return result


Door = tuple[socket.socket, Address]
"""Where peers come: a listener, and its address."""


def _open(address: Address) -> Door:
    listener = listen(address.host, address.port)
    return listener, replace(address, port=listener.getsockname()[1])


@dataclass
class _Coordination:
    """The starts of one run, each after the first of which continues it by itself."""

    recovery: Recovery
    hear: Listener
    sent_job: bytes | None
    signals: Interrupts
    places: HostPlaces | None = None
    local: LocalEngine | None = None

    def close(self) -> None:
        if self.local is not None:
            self.local.close()

    def run(self, launch: Launch, door: Door) -> tuple[dict[str, Any], Launch | None]:
        """One start: the run's result, or what continues it."""
        nodes, kept, (listener, address) = launch.nodes, self.recovery.kept, door
        with contextlib.ExitStack() as ends:
            ends.callback(listener.close)
            recorder = Recorder(launch, self.hear)
            ends.callback(recorder.close)
            notices: Notices = queue.SimpleQueue()
            kept.tell = lambda event: notices.put((-1, event))

            def spec_of(seat: Seat) -> WorkerSpec:
                return kept.told(launch.spec(address, address.host, seat))

            if launch.target.trial is None:
                ends.callback(Control(launch.out, notices).close)
            given = (launch.output, self.sent_job, launch.takes_back)
            local = self.local = engine_for(self.local, notices, spec_of, given, coordinates=True)
            ends.callback(local.end)
            known = first_known(launch.workers, nodes, launch.taken_over)
            known = replace(known, run=recorder.run, patience_s=FIND_S)
            hub = Coordinator(notices, listener, address, local.coordinate, known, launch.out)
            ends.callback(hub.close)
            engine: Engine = local if nodes == 1 else HostsEngine(local, hub, kept.place)
            if self.places is not None:
                engine = HostsEngine(local, hub, kept.place, others=self.places.wait)

            def begin() -> Places:
                counts = [launch.workers]
                if nodes > 1:
                    counts = self._gather(launch, hub, recorder)
                servers = launch.servers(counts)
                launch.plan.check(sum(counts))
                kept.send_to(hub.hosts.keeper_after(0, kept.place))
                hosts = nodes if self.places is None else nodes - 1  # this one has no workers
                recorder.begin(sum(counts), hosts, memory=kept.newest())
                hub.expect(servers, persist=launch.plan.persist)
                hub.let_in(late_host(launch, sum(counts)))
                engine.start([seat for _, seat in servers.seats])
                engine.start(there := seats(counts))
                recorder.event(hub.introduced())
                return Places.of(there)

            result = Controller(launch, hub, engine, recorder, self.recovery).watch(begin, self.signals)
            return result, self.recovery.next(launch, recorder.last_step)

    def _gather(self, launch: Launch, hub: Coordinator, recorder: Recorder) -> list[int]:
        """The number of workers of each host, once all have come."""
        patience_s, advice = PATIENCE_S if launch.continued is None else BACK_S, SAME_COMMAND
        if self.places is not None:
            self.places.begin(hub.address, hub.notices)
            patience_s, advice = min(patience_s, self.places.patience_s), self.places.advice
        counts = await_hosts(hub, launch.nodes, lambda said: recorder.event(WarningEvent(said)), (patience_s, advice))
        if self.places is not None:
            self.places.all_came()
        return counts


def _follow(
    launch: Launch,
    address: Address,
    error: RendezvousError | None,
    given: tuple[Callable[[str], None], Listener, bytes | None, Interrupts],
) -> dict[str, Any]:
    """The launcher of a host that does not coordinate, as another one has the address, where we could not listen.

    If it has to coordinate in the place of that host, it returns the result.
    """
    interface = own_address_towards(address.host, address.port) if launch.plan.copy_every else ""
    with Kept(launch.plan.copy_every > 0, interface, address) as kept:
        return _stay(launch, address, given, kept, error)


def _stay(
    launch: Launch,
    address: Address,
    given: tuple[Callable[[str], None], Listener, bytes | None, Interrupts],
    kept: Kept,
    error: RendezvousError | None = None,
) -> dict[str, Any]:
    """Start workers of this host whenever the coordinator says so, until the run has ended, however it continues.

    If this host has to coordinate in the place of that one, it returns the result.
    """
    say, hear, sent_job, signals = given
    following: Launch | None = launch
    local: LocalEngine | None = None
    with contextlib.ExitStack() as ends:
        while following is not None:
            try:
                follower = Follower(following, address, say, sent_job, kept, local)
            except (RendezvousError, SecurityError) as refusal:
                if error is None:
                    raise
                raise not_a_launcher(refusal, address, error.__cause__) from refusal
            local = follower.engine
            ends.callback(local.close)
            following = follower.watch(signals)
            if follower.gone:
                if not follower.is_over:
                    return take_over(follower, hear, signals)
                follower.close()
                say("the run has ended while this host was cut off; its workers were ended")
            kept.newest()
        return {}
