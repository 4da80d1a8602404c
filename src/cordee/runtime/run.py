"""Run to the end on one host or several."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

from cordee.core import interrupts
from cordee.core.errors import RendezvousError, SecurityError
from cordee.core.events import Listener, WarningEvent
from cordee.core.interrupts import Interrupts
from cordee.group.wire import Address
from cordee.runtime.coordinator.controller import Controller
from cordee.runtime.coordinator.hub import Hub
from cordee.runtime.engines.hosts import Follower, seats_of
from cordee.runtime.engines.local import LocalEngine
from cordee.runtime.launch import Launch
from cordee.runtime.rendezvous import Rendezvous, await_hosts, not_a_launcher
from cordee.runtime.start import run


def run_on_hosts(launch: Launch, meeting: Rendezvous, listen: Listener) -> dict[str, Any]:
    """This host's part of a run over several; the coordinator returns the result, the others an empty one."""
    if meeting.nodes == 1:
        return run(launch, listen)  # no other host is to come
    with interrupts.counted() as signals:
        address = meeting.address()
        launch.check_here()
        launch.settle(lambda message: listen(WarningEvent(message)))
        brief = {"settings": launch.taken_over}
        interrupts.check()
        try:
            hub = Hub(address, expected=0, nodes=meeting.nodes, workers_here=launch.workers, brief=brief)
        except RendezvousError as error:
            _follow(launch, address, listen, error.__cause__, signals)
            return {}
        return _coordinate(launch, hub, meeting.nodes, listen, signals)


def _coordinate(launch: Launch, hub: Hub, nodes: int, listen: Listener, signals: Interrupts) -> dict[str, Any]:
    with contextlib.ExitStack() as ends:
        ends.callback(hub.close)
        recorder = launch.recorder(listen)
        ends.callback(recorder.close)
        engine = LocalEngine(hub.notices, partial(launch.spec, hub.address, hub.address.host), launch.output)
        ends.callback(engine.close)

        def begin() -> None:
            total = await_hosts(hub, nodes, recorder)
            launch.plan.check(total)
            launch.begin(recorder, total)
            engine.start(seats_of(0, launch.workers, total))

        return Controller(launch, hub, engine, recorder).watch(begin, signals)


def _follow(
    launch: Launch, address: Address, listen: Listener, taken: BaseException | None, signals: Interrupts
) -> None:
    try:
        follower = Follower(launch, address, lambda message: listen(WarningEvent(message)))
    except (RendezvousError, SecurityError) as error:
        raise not_a_launcher(error, address, taken) from error
    follower.watch(signals)
