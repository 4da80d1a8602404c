"""The coordinator's host is gone: this host, the next one in their order, coordinates from here on.

It has what the coordinator told all launchers, starts a coordinator with the next number, and its workers and those of
the other hosts, which train on meanwhile, come to it. The run's record goes on in the folder that `--out` names here.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from cordee.core.errors import CoordinatorLost, CordeeError
from cordee.core.events import Listener
from cordee.core.interrupts import Interrupts
from cordee.group.messages import Evicted
from cordee.runtime.coordinator.control import Control
from cordee.runtime.coordinator.controller import Controller
from cordee.runtime.coordinator.known import Known
from cordee.runtime.coordinator.policy import what_ends
from cordee.runtime.coordinator.state import Places
from cordee.runtime.coordinator.supervised import Coordinator
from cordee.runtime.engines.hosts import Follower, HostsEngine
from cordee.runtime.folder import last_recorded
from cordee.runtime.launch import Launch
from cordee.runtime.notices import Lost, Minority
from cordee.runtime.recorder import Recorder
from cordee.runtime.recovering import Recovery


def take_over(follower: Follower, hear: Listener, signals: Interrupts) -> dict[str, Any]:
    """The rest of the run, with this host as the first; returns the result, or raises what ended it."""
    known, launch = follower.known, follower.launch
    assert known is not None
    names, node = known.hosts.names, known.hosts.order.index(follower.number)
    reasons = {
        host: f"the launcher on {names[host] or 'the first host'} {'ended' if ended else 'fell silent'}"
        for host, ended in follower.gone.items()
    }
    reason = reasons[known.home]
    host, port = follower.door
    with contextlib.ExitStack() as ends:
        ends.callback(follower.close)
        follower.address = replace(follower.address, host=host, port=port)
        start, begin_with = follower.engine.coordinate, _heritage(known, follower.number, last_recorded(launch.out)[0])
        door = follower.notices, follower.listener, follower.address
        hub = Coordinator(*door, start, begin_with, launch.out, reason, follower.tickets)
        ends.callback(hub.close)
        hub.let_in(Evicted(f"no host can enter this run any more: {reason}, and hosts enter there"))
        for gone, ended in follower.gone.items():  # those that ended first: they are not counted then
            hub.leave(gone, reasons[gone], certain=ended)
            if not hub.may_go_on(gone):  # the folder may be another side's, which continues
                hub.abort(reason)
                raise cut_off(hub.minority, reason, launch)
        for worker in hub.known.roster.invited:  # perhaps no launcher was told to start it
            hub.lose(worker, reason)
        follower.kept.tell = lambda event: follower.notices.put((-1, event))
        recorder = Recorder(launch, hear, takes_over=True)
        ends.callback(recorder.close)

        ends.callback(Control(launch.out, follower.notices).close)

        def begin() -> Places:
            if not recorder.has_begun:
                recorder.begin(sum(known.hosts.counts), known.hosts.nodes)
                if known.job is not None:
                    recorder.notice(-1, known.job)
            if known.job is not None:  # the run trains: the controller carries out commands
                hub.notices.put((-1, known.job))
            recorder.event(hub.introduced())
            for worker, lost in known_losses(known):  # its launcher may have ended before it wrote them down
                recorder.notice(worker, lost)
            return Places.found(hub.hosts, hub.known.roster, node, recorder.last_step)

        engine = HostsEngine(follower.engine, hub, follower.kept.place, node)
        recovery = Recovery(
            launch, follower.kept, "its first host is gone, to whose address the others would come back"
        )
        return Controller(launch, hub, engine, recorder, recovery).watch(begin, signals)


def _heritage(known: Known, home: int, recorded: int) -> Known:
    """What the coordinator on this host begins with.

    All regroup, also if no worker was on the host that is gone: what they posted may have been lost with its launcher.
    """
    following = known.next_term(0)
    return replace(following, home=home, recorded=recorded, roster=following.roster.tear())


def known_losses(known: Known) -> Iterator[tuple[int, Lost]]:
    """The members that were lost, as far as is known: newcomers only if they belonged to the last group."""
    roster, hosts = known.roster, known.hosts
    for worker, reason in roster.lost:
        if worker < roster.expected or (known.go is not None and worker in known.go.members):
            name = hosts.names.get(hosts.places.get(worker, -1), "")
            yield worker, Lost(name, reason, len(roster.alive), time.time())


def cut_off(minority: Minority | None, reason: str, launch: Launch) -> CordeeError:
    """What ends the run on this side."""
    error = None if minority is None else what_ends(-1, "", minority, launch.wording)
    return error or CoordinatorLost(f"{reason}, and no other coordinator could be started")
