"""Run to the end: the one way by which the command, `cordee.train` and measurements start a run."""

from __future__ import annotations

import contextlib
import queue
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cordee.core import interrupts
from cordee.core.errors import RendezvousError, SecurityError
from cordee.core.events import Listener, WarningEvent
from cordee.core.world import World
from cordee.group.messages import Seat
from cordee.runtime.coordinator.controller import Controller
from cordee.runtime.coordinator.known import first_known
from cordee.runtime.coordinator.server import listen
from cordee.runtime.coordinator.supervised import PATIENCE_S, Coordinator
from cordee.runtime.engines.hosts import Follower, HostsEngine
from cordee.runtime.engines.local import LocalEngine
from cordee.runtime.engines.seam import Engine, seats
from cordee.runtime.launch import Launch
from cordee.runtime.notices import Notices
from cordee.runtime.recorder import Recorder
from cordee.runtime.rendezvous import await_hosts, not_a_launcher
from cordee.runtime.sent import pack_job
from cordee.runtime.takeover import take_over

if TYPE_CHECKING:
    from cordee.train.job import Job


def run(launch: Launch, hear: Listener, job: Job | None = None) -> dict[str, Any]:
    """This process's part of a run; returns the result, or raises what ended it.

    It coordinates, unless another host does (then the result is empty), or another launcher started this process. A
    `job` that was made in this process is sent to its workers.
    """
    world = World.from_env()
    if world.is_foreign:
        from cordee.runtime.engines.foreign import run_foreign

        return run_foreign(launch, world, hear, job)
    with interrupts.counted() as signals, contextlib.ExitStack() as ends:
        nodes, address = launch.nodes, launch.address()
        launch.check()
        launch.check_formats(say := lambda message: hear(WarningEvent(message)))
        sent_job = None if job is None else pack_job(job)
        interrupts.check()
        try:
            listener = listen(address.host, address.port)
        except RendezvousError as error:
            if nodes == 1:
                raise
            try:
                follower = Follower(launch, address, say, sent_job)
            except (RendezvousError, SecurityError) as refusal:
                raise not_a_launcher(refusal, address, error.__cause__) from refusal
            follower.watch(signals)
            return {} if follower.votes is None else take_over(follower, hear, signals)
        ends.callback(listener.close)
        address = replace(address, port=listener.getsockname()[1])
        recorder = Recorder(launch, hear)
        ends.callback(recorder.close)
        notices: Notices = queue.SimpleQueue()
        spec_of = partial(launch.spec, address, address.host)
        local = LocalEngine(notices, spec_of, launch.output, sent_job, coordinates=True)
        ends.callback(local.close)
        known = first_known(launch.workers, nodes, launch.taken_over)
        known = replace(known, run=recorder.run, patience_s=PATIENCE_S)
        hub = Coordinator(notices, listener, address, local.coordinate, known, launch.out)
        ends.callback(hub.close)
        engine: Engine = local if nodes == 1 else HostsEngine(local, hub)

        def begin() -> list[Seat]:
            counts = [launch.workers]
            if nodes > 1:
                counts = await_hosts(hub, nodes, lambda message: recorder.event(WarningEvent(message)))
            servers = launch.servers(counts)
            launch.plan.check(sum(counts))
            recorder.begin(sum(counts), nodes)
            hub.expect(servers, persist=launch.plan.persist)
            engine.start([seat for _, seat in servers.seats])
            engine.start(places := seats(counts))
            recorder.event(hub.introduced())
            return places

        return Controller(launch, hub, engine, recorder).watch(begin, signals)
