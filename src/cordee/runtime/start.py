"""Run to the end: the one way by which the command, `cordee.train` and measurements start a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from cordee.core import interrupts
from cordee.core.errors import RendezvousError, SecurityError
from cordee.core.events import Listener, WarningEvent
from cordee.core.interrupts import Interrupts
from cordee.core.world import World
from cordee.group.messages import Seat
from cordee.group.wire import Address, own_address_towards
from cordee.runtime.coordinator.control import Control
from cordee.runtime.coordinator.controller import Controller
from cordee.runtime.coordinator.hub import Hub
from cordee.runtime.coordinator.joining import late_host
from cordee.runtime.engines.hosts import Follower, HostsEngine
from cordee.runtime.engines.local import LocalEngine, engine_for
from cordee.runtime.engines.seam import Engine, seats
from cordee.runtime.keeping import Kept
from cordee.runtime.launch import Launch
from cordee.runtime.recorder import Recorder
from cordee.runtime.recovering import Recovery
from cordee.runtime.rendezvous import BACK_S, PATIENCE_S, await_hosts, not_a_launcher
from cordee.runtime.sent import pack_job
from cordee.runtime.spec import WorkerSpec

if TYPE_CHECKING:
    from cordee.train.job import Job


def enter(launch: Launch, say: Callable[[str], None]) -> None:
    """Enter a run of other hosts that has begun, with workers of this host, and stay until it ends."""
    assert launch.rendezvous is not None
    with interrupts.counted() as signals:
        address = launch.rendezvous.address(launch.wording)
        with Kept(False) as kept:
            _stay(launch, address, (say, None, signals), kept)


def run(launch: Launch, listen: Listener, job: Job | None = None) -> dict[str, Any]:
    """This process's part of a run; returns the result, or raises what ended it.

    It coordinates, unless another host does (then the result is empty), or another launcher started this process. A
    `job` that was made in this process is sent to its workers.
    """
    world = World.from_env()
    if world.is_foreign:
        from cordee.runtime.engines.foreign import run_foreign

        return run_foreign(launch, world, listen, job)
    with interrupts.counted() as signals:
        address = launch.address()
        launch.check()
        launch.check_formats(say := lambda message: listen(WarningEvent(message)))
        sent_job = None if job is None else pack_job(job)
        interrupts.check()
        try:
            hub = _open_hub(launch, address)
        except RendezvousError as error:
            if launch.nodes == 1:
                raise
            _follow(launch, address, error, (say, sent_job, signals))
            return {}
        beyond = address.host if launch.nodes > 1 else ""
        with Kept(launch.plan.copy_every > 0, beyond, address) as kept, contextlib.ExitStack() as ends:
            coordination = _Coordination(Recovery(launch, kept), listen, sent_job, signals)
            ends.callback(coordination.close)
            result, following = coordination.run(launch, hub)
            while following is not None:
                result, following = coordination.run(following, _open_hub(following, following.address()))
            return result


def _open_hub(launch: Launch, address: Address) -> Hub:
    hub = Hub(address, expected=launch.workers, nodes=launch.nodes, settings=launch.taken_over)
    hub.coming.late = partial(late_host, launch)
    return hub


@dataclass
class _Coordination:
    """The starts of one run, each after the first of which continues it by itself."""

    recovery: Recovery
    listen: Listener
    sent_job: bytes | None
    signals: Interrupts
    local: LocalEngine | None = None

    def close(self) -> None:
        if self.local is not None:
            self.local.close()

    def run(self, launch: Launch, hub: Hub) -> tuple[dict[str, Any], Launch | None]:
        """One start: the run's result, or what continues it."""
        nodes, kept = launch.nodes, self.recovery.kept
        with contextlib.ExitStack() as ends:
            ends.callback(hub.close)
            kept.tell = lambda event: hub.notices.put((-1, event))
            recorder = Recorder(launch, self.listen)
            ends.callback(recorder.close)

            def spec_of(seat: Seat) -> WorkerSpec:
                return kept.told(launch.spec(hub.address, hub.address.host, seat))

            if launch.target.trial is None:
                ends.callback(Control(launch.out, hub.notices).close)
            given = (launch.output, self.sent_job, launch.takes_back)
            local = self.local = engine_for(self.local, hub.notices, spec_of, given)
            ends.callback(local.end)
            engine: Engine = local if nodes == 1 else HostsEngine(local, hub, kept.place)

            def begin() -> list[Seat]:
                counts = [launch.workers]
                if nodes > 1:
                    patience_s = PATIENCE_S if launch.continued is None else BACK_S
                    counts = await_hosts(hub, nodes, lambda said: recorder.event(WarningEvent(said)), patience_s)
                servers = launch.servers(counts)
                launch.plan.check(sum(counts))
                kept.send_to(hub.hosts.keeper_after(0, kept.place))
                recorder.begin(sum(counts), nodes, memory=kept.newest())
                hub.stewards.expect(servers, persist=launch.plan.persist)
                engine.start([seat for _, seat in servers.seats])
                engine.start(places := seats(counts))
                return places

            result = Controller(launch, hub, engine, recorder, self.recovery).watch(begin, self.signals)
            return result, self.recovery.next(launch, recorder.last_step)


def _follow(
    launch: Launch,
    address: Address,
    error: RendezvousError,
    given: tuple[Callable[[str], None], bytes | None, Interrupts],
) -> None:
    """The launcher of a host that does not coordinate, as another one has the address, where we could not listen."""
    interface = own_address_towards(address.host, address.port) if launch.plan.copy_every else ""
    with Kept(launch.plan.copy_every > 0, interface, address) as kept:
        _stay(launch, address, given, kept, error)


def _stay(
    launch: Launch,
    address: Address,
    given: tuple[Callable[[str], None], bytes | None, Interrupts],
    kept: Kept,
    error: RendezvousError | None = None,
) -> None:
    """Start workers of this host whenever the coordinator says so, until the run has ended, however it continues."""
    say, sent_job, signals = given
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
            kept.newest()
