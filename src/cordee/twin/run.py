"""A run on a twin: the ordinary command on each of its hosts, and faults while it goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cordee.core.errors import UsageError
from cordee.core.events import append_event
from cordee.twin.cluster import Cluster, read_setting
from cordee.twin.schedule import Action, Cut, KillHost, Mend, Progress, Schedule, Set, Signal, choose
from cordee.twin.statements import place
from cordee.twin.twin import Twin

LOOK_EVERY_S = 0.02
_LEAVING_S, _LEFT_S = 20.0, 5.0
"""How long the other hosts may take to end after a run that ended well, and after one that did not."""
_LISTENING_S = 60.0
_HEAD = 200
"""So many bytes hold the time of the first event, which tells two files apart."""
_SIGNALS = {"kill": signal.SIGKILL, "pause": signal.SIGSTOP, "resume": signal.SIGCONT}

Say = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """What is to run on the twin."""

    command: str
    """`train` or `run`."""
    target: Path
    out: Path
    options: tuple[str, ...] = ()
    """For each host's command, as they stand."""
    port: int = 29400


@dataclass
class Seen:
    """What a run's folder tells while it is being written."""

    folder: Path
    step: int = 0
    stepped: bool = False
    """Whether a step of this start is on record."""
    began: float | None = None
    """When the first worker was there, by the clock that events are stamped with."""
    workers: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Host and process of each worker that is in the run."""
    _head: bytes = b""
    """How the file of a former start begins."""
    _read: int = 0
    _rest: bytes = b""

    def look(self) -> None:
        """Read what is new."""
        with contextlib.suppress(FileNotFoundError), (self.folder / "events.jsonl").open("rb") as file:
            if file.read(len(self._head)) != self._head:  # the former start came to nothing: its file was replaced
                self._head, self._read, self._rest = b"", 0, b""
            file.seek(self._read)
            new = file.read()
            self._read += len(new)
            *lines, self._rest = (self._rest + new).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def skip(self) -> None:
        """What is there now belongs to a former start."""
        with contextlib.suppress(FileNotFoundError):
            former = (self.folder / "events.jsonl").read_bytes()
            self._read = former.rfind(b"\n") + 1  # whoever goes on with it cuts off a line that was left unfinished
            self._head = former[: min(self._read, _HEAD)]

    def progress(self) -> Progress:
        """How far it has come."""
        return Progress(self.step, time.time() - self.began if self.began is not None else 0.0)

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "step":
            self.step, self.stepped = int(event["step"]), True
        elif kind == "job":
            self.step = int(event["steps"])  # not 0 when it is resumed
        elif kind == "worker":
            self.began = self.began or float(event["time"])
            self.workers[int(event["worker"])] = (str(event["host"]), int(event["pid"]))
        elif kind == "failure":
            self.workers.pop(int(event["worker"]), None)


def commands(twin: Twin, asked: Asked) -> dict[str, list[str]]:
    """What is started on each host: what a person would type there."""
    cluster = twin.cluster
    meeting = cluster.names[0] if twin.entry.namespaces else "127.0.0.1"
    result = {}
    for host in cluster.hosts:
        out = asked.out if host.name == cluster.names[0] else twin.entry.folder / f"out-{host.name}"
        words = [sys.executable, "-m", "cordee", asked.command]
        words += ["--workers", str(host.workers), "--out", str(out)]
        if "--threads" not in asked.options:
            words += ["--threads", str(threads_of(cluster, host.name))]
        if len(cluster.hosts) > 1:
            words += ["--rendezvous", f"{meeting}:{asked.port}", "--nodes", str(len(cluster.hosts))]
            words += ["--token-file", str(twin.entry.token_file), "--trusted-network"]
        # The target last but for the options: to `cordee run` what follows its script belongs to the script.
        target = [str(asked.target), *asked.options] if asked.command == "run" else [*asked.options, str(asked.target)]
        result[host.name] = twin.command(host.name, [*words, *target])
    return result


def threads_of(cluster: Cluster, host: str) -> int:
    """Threads that a worker of this host computes with: no more than its part of the processor."""
    chosen = cluster.host(host)
    cores = len(os.sched_getaffinity(0))
    mine = chosen.cpu if chosen.cpu is not None else cores * chosen.workers / cluster.workers
    return max(1, int(mine / chosen.workers))


def check(schedule: Schedule, cluster: Cluster) -> None:
    """Refuse a schedule that speaks of what this cluster does not have, before anything is made."""
    schedule.check(cluster.names, cluster.workers, read_setting)


def check_possible(schedule: Schedule, twin: Twin) -> None:
    """Refuse a schedule that this twin cannot follow, before anything starts."""
    for rule in schedule.rules:
        for action in rule.actions:
            needed = dict(action.settings) if isinstance(action, Set) else {}
            for what in ("link",) if isinstance(action, Cut | Mend) else needed:
                if why := twin.lacking(what):
                    raise UsageError(f"{place(rule.line, action.word, str(action).split()[0])}: {why}")


def run(twin: Twin, asked: Asked, schedule: Schedule, *, seed: int = 0, say: Say) -> int:
    """Start it on all hosts, let the faults happen, and wait for its end; the exit code of the first host."""
    seen = Seen(asked.out)
    seen.skip()
    (twin.entry.folder / "run").write_text(str(asked.out.resolve()))
    faults = Faults(twin, seen, seed, say)
    with _started(twin, asked) as hosts, _passed_on(first := hosts[twin.cluster.names[0]]):
        before = seen.progress()
        while first.poll() is None:
            seen.look()
            now = seen.progress()
            if not seen.stepped:
                before = Progress(now.step, before.seconds)
            for action in schedule.due(before, now):
                faults.do(action)
            before = now
            time.sleep(LOOK_EVERY_S)
        _wait_for(list(hosts.values()), _LEAVING_S if first.returncode == 0 else _LEFT_S)
        if first.returncode < 0:  # it could not say so itself
            say(f"host {twin.cluster.names[0]}, which coordinates, was ended by signal {-first.returncode}")
        for host, process in hosts.items():
            if process is not first and process.poll() != 0 and host not in faults.struck:
                code = process.poll()
                how = "had to be ended" if code is None else f"ended with code {code}"
                say(f"host {host} {how}: {_last_line(twin, host)}")
    return first.returncode


class Faults:
    """Does what a schedule, or a person, says; and writes down that it was done."""

    def __init__(self, twin: Twin, seen: Seen, seed: int, say: Say) -> None:
        """Nothing has happened. `seed` decides who `random` is."""
        self._twin, self._seen, self._seed, self._say = twin, seen, seed, say
        self._drawn = 0
        self.struck: set[str] = set()
        """Hosts that something was done to: how they end is no news."""

    def do(self, action: Action) -> None:
        """One action, now."""
        what = str(action)
        if isinstance(action, Signal):
            what = self._signal(action)
        elif isinstance(action, Cut):
            self.struck.add(action.host)
            self._twin.cut(action.host)
        elif isinstance(action, Mend):
            self._twin.mend(action.host)
        elif isinstance(action, KillHost):
            self.struck.add(action.host)
            self._twin.end_processes(action.host)
        elif isinstance(action, Set):
            self._twin.set(action.host, {key: read_setting(key, text) for key, text in action.settings})
        self._say(f"step {self._seen.step}: {what}")
        append_event(self._seen.folder / "events.jsonl", "fault", what=what)

    def _signal(self, action: Signal) -> str:
        workers = self._seen.workers
        number = action.worker
        if number is None:
            self._drawn += 1
            if not workers:
                return f"{action.kind} random worker: there is none"
            number = choose(self._seed, self._drawn, sorted(workers))
        if number not in workers:
            return f"{action.kind} worker {number}: it is not there any more"
        said, pid = workers[number]
        # A host that is no namespace goes by the machine's name; the number alone could be another process's by now.
        names = sorted(self._twin.cluster.names, key=lambda name: name != said)
        host = next((name for name in names if pid in self._twin.processes(name)), None)
        if host is None:
            return f"{action.kind} worker {number}: process {pid} is not there any more"
        self.struck.add(host)
        os.kill(pid, _SIGNALS[action.kind])
        return f"{action.kind} worker {number} (process {pid} on {host})"


def seen_of(twin: Twin, folder: Path | None = None) -> Seen:
    """The run that goes on on a twin: the one that `twin run` started, or the one in `folder`."""
    if folder is None:
        try:
            folder = Path((twin.entry.folder / "run").read_text())
        except OSError:
            raise UsageError(f"no run was started on twin {twin.name} by `cordee twin run`: say --run FOLDER") from None
    seen = Seen(folder)
    seen.look()
    return seen


@contextlib.contextmanager
def _started(twin: Twin, asked: Asked) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """The command on every host: the first one speaks on our terminal, the others into a file."""
    with contextlib.ExitStack() as stack:
        hosts: dict[str, subprocess.Popen[bytes]] = {}
        one_address = len(twin.cluster.hosts) > 1 and not twin.entry.namespaces
        if one_address and _listening(asked.port):
            raise UsageError(f"port {asked.port} of this machine is in use: choose another with --port")
        try:
            for host, command in commands(twin, asked).items():
                log = stack.enter_context(_log(twin, host).open("wb")) if hosts else None
                # Sessions of their own: Ctrl-C reaches the first host alone, as it would with machines.
                hosts[host] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
                if one_address and len(hosts) == 1:  # whoever listens first coordinates
                    _await_listening(hosts[host], asked.port)
            yield hosts
        finally:
            for host in hosts:
                twin.end_processes(host)
            _wait_for(list(hosts.values()), _LEAVING_S)


@contextlib.contextmanager
def _passed_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """What asks us to end is passed on; we end when it has."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def pass_on(number: int, frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _await_listening(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _LISTENING_S
    while process.poll() is None and not _listening(port) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)


def _listening(port: int) -> bool:
    """Whether somebody listens at this port of the machine; nobody is disturbed by a connection."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


def _wait_for(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))


def _log(twin: Twin, host: str) -> Path:
    return twin.entry.folder / f"{host}.log"


def _last_line(twin: Twin, host: str) -> str:
    lines = [line for line in _log(twin, host).read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
