"""Follows the record of a run, and strikes its processes by their role."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cordee.core import events
from cordee.twin.follow import RunFollower
from harness import Process, descendants, stat_of
from trials.drawn import ENDS, GATE, Fault
from trials.hosts import Hosts

SPREAD_S = 0.004
"""Between two of several that are struck at once."""
EVENT_S = 3.0
"""How long a fault waits for its event."""
LOST_S = 5.0
"""After so long a worker whose launcher was killed is gone, or is not going to be."""
CONTINUES = 15
"""From this step on there is a checkpoint."""
SETTLE_S = 1.0
"""How long a run is watched after the last fault, before it may go on to its end."""


@dataclass(frozen=True)
class Victim:
    """What a fault of a role can strike."""

    name: str
    processes: frozenset[Process] = frozenset()
    takes: frozenset[int] = frozenset()
    """The workers that the run may lose with it."""
    host: str = ""
    """Whose link it is."""


@dataclass
class Watched(RunFollower):
    """The processes of a run, by what its record says."""

    members: frozenset[int] = frozenset()
    """The workers of the current generation."""
    settled: frozenset[int] = frozenset()
    """Those of them that have the state, because a step was committed since they are members."""
    nodes: dict[int, int] = field(default_factory=dict)
    pids: dict[int, Process] = field(default_factory=dict)
    """Of workers."""
    servers: dict[int, tuple[str, Process]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    coordinators: list[Process] = field(default_factory=list)
    """The last one coordinates."""
    seen: set[Process] = field(default_factory=set)
    """All processes that were ever on record."""
    _formed: float = 0.0

    def _take(self, event: events.Event) -> None:
        super()._take(event)
        self.counts[event.kind] += 1
        match event:
            case events.StartEvent():
                self.members = frozenset(range(event.workers))
                self.settled = self.members  # all of them begin with the same
                self.step = 0
                self.servers.clear()
                self._formed = 0.0
            case events.WorkerEvent():
                self.nodes[event.worker] = event.node or 0
                self.pids[event.worker] = self._process(event.pid)
            case events.ServerEvent(what="lost"):
                self.servers.pop(event.server, None)
            case events.ServerEvent():
                self.servers[event.server] = (event.what, self._process(event.pid))
            case events.CoordinatorEvent():
                self.coordinators.append(self._process(event.pid))
            case events.FailureEvent():
                self.members -= {event.worker}
                self.settled -= {event.worker}
            case events.RegroupEvent():
                self.members, self._formed = frozenset(event.workers), event.at or event.time
                self.settled &= self.members
            case events.StepEvent() if (event.at or 0.0) > self._formed:
                self.settled = self.members

    def _process(self, pid: int) -> Process:
        found = stat_of(pid)
        process = Process(pid, found[2] if found is not None else -1)
        self.seen.add(process)
        return process

    def on_host(self, number: int) -> frozenset[int]:
        """The workers of a host that are in the run."""
        return frozenset(one for one in self.workers if self.nodes.get(one) == number)


def _workers(run: Watched, hosts: Hosts) -> Iterator[Victim]:
    for one in sorted(run.members & run.workers.keys()):
        yield Victim(f"worker {one}", frozenset({run.pids[one]}), frozenset({one}))


def _newcomers(run: Watched, hosts: Hosts) -> Iterator[Victim]:
    """Workers that start, or that have just come in."""
    for one in sorted(run.workers.keys() - run.settled):
        yield Victim(f"worker {one}", frozenset({run.pids[one]}), frozenset({one}))


def _servers(run: Watched, hosts: Hosts) -> Iterator[Victim]:
    for one, (what, process) in sorted(run.servers.items()):
        yield Victim(f"server {one} ({what})", frozenset({process}))


def _launchers(run: Watched, hosts: Hosts) -> Iterator[Victim]:
    """Of hosts that follow."""
    for number, process in hosts.following():
        yield Victim(f"launcher {number}", frozenset({process}), run.on_host(number))


def _hosts(run: Watched, hosts: Hosts) -> Iterator[Victim]:
    """All processes of a host that follows."""
    for number, process in hosts.following():
        workers = run.on_host(number)
        here = frozenset({process, *descendants(process.pid), *(run.pids[one] for one in workers)})
        yield Victim(f"host {number}", here, workers, hosts.names[number])


def _starters(run: Watched, hosts: Hosts, first: bool = False) -> Iterator[Victim]:
    """The processes that workers of a host are forked from: of hosts that follow, or of the `first`."""
    for number in range(0 if first else 1, 1 if first else len(hosts.names)):
        workers = [run.pids[one].pid for one in run.on_host(number) if run.pids[one].alive]
        parents = {found[1] for found in map(stat_of, workers) if found is not None}
        for parent in parents:
            if (found := stat_of(parent)) is not None:
                yield Victim(f"starter {number}", frozenset({Process(parent, found[2])}), run.on_host(number))


def _coordinator(run: Watched, hosts: Hosts) -> Iterator[Victim]:
    for one in run.coordinators[-1:]:
        yield Victim("coordinator", frozenset({one}))


def _first_launcher(run: Watched, hosts: Hosts) -> Iterator[Victim]:
    yield Victim("first launcher", frozenset({hosts.first}))


def _whole(run: Watched, hosts: Hosts) -> Iterator[Victim]:
    yield Victim("run")


def _all(run: Watched, hosts: Hosts) -> Iterator[Victim]:
    yield Victim("all workers", frozenset(run.pids[one] for one in run.workers), frozenset(run.workers))


ROLES: Mapping[str, Callable[[Watched, Hosts], Iterable[Victim]]] = {
    "worker": _workers,
    "newcomer": _newcomers,
    "server": _servers,
    "launcher": _launchers,
    "host": _hosts,
    "link": _hosts,
    "starter": _starters,
    "first starter": lambda run, hosts: _starters(run, hosts, first=True),
    "coordinator": _coordinator,
    "first launcher": _first_launcher,
    "run": _whole,
    "all workers": _all,
}


class Striker:
    """Does the faults of a start of a run, one after the other, and remembers what was done."""

    def __init__(self, faults: Sequence[Fault], run: Watched, hosts: Hosts) -> None:
        """None of them yet."""
        self._run, self._hosts = run, hosts
        self._left = list(faults)
        self._undo: list[tuple[float, Callable[[], None]]] = []
        self._before = Counter[str]()
        self._since: float | None = None
        """When the next fault's step was there."""
        self._idle = 0.0
        self._doomed: dict[int, float] = {}
        """Workers that may be lost, until when."""
        self._spent = -1
        """After which start the run continues by itself."""
        self._killed: set[Process] = set()
        """They may need a moment to be gone."""
        self.done: list[tuple[Fault, str]] = []
        """What was struck."""
        self.ended = False
        """Whether the run was ended, as far as we know."""

    def look(self) -> bool:
        """Strike what is due; whether there is nothing left to do before the run may go on to its end."""
        now = time.monotonic()
        for due, undo in [one for one in self._undo if one[0] <= now]:
            undo()
            self._undo.remove((due, undo))
        if not self._left or self._run.step < self._left[0].step or not self._run.members:
            waits = any(fault.step < GATE for fault in self._left)
            return not waits and not self._undo and now - self._idle > SETTLE_S
        fault = self._left[0]
        self._since = self._since or now
        come = not fault.event or self._run.counts[fault.event] > self._before[fault.event]
        if come or now - self._since > EVENT_S:
            self._left.pop(0)
            self._since = None
            if come:
                time.sleep(fault.delay_s)
                self._run.look()
                self._strike(fault)
            self._idle = time.monotonic()
        return False

    def relent(self) -> None:
        """Undo at once what would be undone later."""
        for _, undo in self._undo:
            undo()
        self._undo.clear()

    def _strike(self, fault: Fault) -> None:
        victims = self._victims(fault)
        if victims is None:
            return
        self._before = self._run.counts.copy()
        self.ended = self.ended or self._ends(fault)
        words = []
        for victim in victims:
            until = time.monotonic() + max(fault.lasts_s + SETTLE_S, LOST_S)
            self._doomed |= dict.fromkeys(victim.takes, until)
            words.append(self._do(fault, victim))
            time.sleep(SPREAD_S if len(victims) > 1 else 0.0)
        self.done.append((fault, ", ".join(words)))

    def _victims(self, fault: Fault) -> list[Victim] | None:
        """Different ones; None if there are too few, or if the run could not go on without them and should."""
        victims: list[Victim] = []
        for role, pick in zip(fault.roles, fault.picks, strict=True):
            found = [one for one in ROLES[role](self._run, self._hosts) if one.name not in {v.name for v in victims}]
            found = [one for one in found if not one.processes & self._killed]
            found = [one for one in found if all(process.alive for process in one.processes if one.takes)]
            if not found:
                return None
            victims.append(found[int(pick * len(found))])
        taken = frozenset[int]().union(*(victim.takes for victim in victims))
        if self._ends(fault) or self._survives(taken) or self._continues(fault, taken):
            return victims
        return None

    def _ends(self, fault: Fault) -> bool:
        """Whether the run cannot go on by itself after it."""
        recovers = {"all workers"} if self._hosts.case.recovers else set[str]()
        return fault.deed == "kill" and bool({*fault.roles} & ({*ENDS} - recovers))

    def _continues(self, fault: Fault, taken: frozenset[int]) -> bool:
        """Whether it continues by itself after it: once in a start, when there is something to continue from."""
        starts, case = self._run.counts["start"], self._hosts.case
        left = {one for one in self._run.workers.keys() - taken if self._run.pids[one].alive}
        if not case.recovers or self._spent == starts or min(self._run.step, fault.step) < CONTINUES:
            return False
        if "recover=fewer" in case.plan and not left:
            return False
        self._spent = starts
        return True

    def _survives(self, taken: frozenset[int]) -> bool:
        """Whether a whole replica with the state is left without these workers."""
        doomed = {one for one, until in self._doomed.items() if time.monotonic() < until}
        left = self._run.settled - taken - doomed
        left = {one for one in left if one in self._run.pids and self._run.pids[one].alive}
        size = self._hosts.case.replica
        return any(left.issuperset(range(first, first + size)) for first in range(0, max(left, default=0) + 1, size))

    def _do(self, fault: Fault, victim: Victim) -> str:
        """In words."""
        until = time.monotonic() + fault.lasts_s
        match fault.deed:
            case "cut":
                self._hosts.plug(victim.host, "down")
                self._undo.append((until, lambda: self._hosts.plug(victim.host, "up")))
            case "pause":
                send(victim.processes, signal.SIGSTOP)
                self._undo.append((until, lambda: send(victim.processes, signal.SIGCONT)))
            case "kill":
                send(victim.processes, signal.SIGKILL)
                self._killed |= victim.processes
            case "scale":
                members = sorted(self._run.members)
                count = 1 + int(fault.picks[0] * (self._hosts.case.workers + 2))
                self._doomed |= dict.fromkeys(members[count:], time.monotonic() + LOST_S)
                return f"{len(members)} to {count} workers: {self._hosts.scale(count)}"
        return victim.name


def send(processes: Iterable[Process], number: signal.Signals) -> None:
    """A signal to those of them that are there."""
    for process in processes:
        if process.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
