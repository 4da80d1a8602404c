"""What is started on each host of a twin for a run, and the processes that come of it."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cordee.core.errors import UsageError
from cordee.core.interpreter import python_module
from cordee.core.locks import is_locked, take_lock
from cordee.core.machine import listeners
from cordee.twin.cluster import Cluster
from cordee.twin.enter import RUN
from cordee.twin.processes import end_until_none, marked, wait_for
from cordee.twin.twin import Twin

ENDING_S = 20.0
"""How long the first processes of hosts may take to end."""
_LISTENING_S = 60.0
_BUSY = "busy.lock"
_MEETING = "the hosts of a twin find each other by themselves"
_GIVEN = {
    "--workers": 'each host has its own number of workers, such as --hosts "2 x workers=2"',
    **dict.fromkeys(("--rendezvous", "--nodes", "--token-file", "--trusted-network"), _MEETING),
}
"""Options of `cordee train` that the twin gives to each host, and what to do instead."""


@dataclass(frozen=True)
class RunRequest:
    """What is to run on the twin."""

    command: str
    """`train` or `run`."""
    target: Path
    out: Path
    options: tuple[str, ...] = ()
    """For each host's command, as they stand."""
    port: int = 29400
    behind: tuple[str, ...] = ()
    """What stands behind `--`: a script's own, whatever it looks like."""

    def folder(self, twin: Twin, host: str) -> Path:
        """A host's folder of the run; the first host's is the user's."""
        return self.out if host == twin.cluster.names[0] else twin.entry.folder / f"out-{host}"


def commands(twin: Twin, request: RunRequest) -> dict[str, list[str]]:
    """What is started on each host: what a user would type there."""
    cluster = twin.cluster
    meeting = cluster.names[0] if twin.entry.namespaces else "127.0.0.1"
    result = {}
    for host in cluster.hosts:
        words = python_module("cordee", request.command)
        words += ["--workers", str(host.workers), "--out", str(request.folder(twin, host.name))]
        if "--threads" not in request.options:
            words += ["--threads", str(threads_of(cluster, host.name))]
        if len(cluster.hosts) > 1:
            words += ["--rendezvous", f"{meeting}:{request.port}", "--nodes", str(len(cluster.hosts))]
            words += ["--token-file", str(twin.entry.token_file), "--trusted-network"]
        # The target last but for the options: to `cordee run` what follows its script belongs to the script.
        target = str(request.target)
        words += [target, *request.options] if request.command == "run" else [*request.options, target]
        words += ["--", *request.behind] if request.behind else []
        result[host.name] = twin.command(host.name, words)
    return result


def check_options(options: Sequence[str]) -> None:
    """Refuse options of a host's command that the twin gives itself."""
    for name in (word.partition("=")[0] for word in options):
        if name in _GIVEN:
            raise UsageError(f"{name} cannot be given here: {_GIVEN[name]}")


def threads_of(cluster: Cluster, host: str) -> int:
    """Threads that a worker of this host computes with: no more than its part of the processor."""
    chosen = cluster.host(host)
    cores = len(os.sched_getaffinity(0))
    own = chosen.cpu if chosen.cpu is not None else cores * chosen.workers / cluster.workers
    return max(1, int(own / max(1, chosen.workers)))


class HostProcesses:
    """The processes of one run on the hosts, told from others there: the first of each host, its descendants."""

    def __init__(self, folder: Path) -> None:
        """None yet; what those of other hosts than the first print goes to files in `folder`."""
        # In the environment: workers have sessions of their own, and parents that may have ended.
        self._mark = secrets.token_hex(16)
        self._folder = folder
        self.hosts: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def first(self) -> subprocess.Popen[bytes]:
        """That of the host which coordinates."""
        return next(iter(self.hosts.values()))

    def start(self, host: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a host's command; the first host prints where we do."""
        with self._log(host).open("wb") if self.hosts else contextlib.nullcontext() as log:
            # A session of its own: Ctrl-C is for us to pass on, to the first host alone, as it would be with machines.
            self.hosts[host] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, RUN: self._mark},
            )
        return self.hosts[host]

    def last_line(self, host: str) -> str:
        """The last line that a host other than the first has printed."""
        lines = [line for line in self._log(host).read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else "it printed nothing"

    def _log(self, host: str) -> Path:
        return self._folder / f"{host}.log"

    def wait(self, seconds: float, but: Collection[str] = ()) -> None:
        """Until the first process of each host, `but` these, has ended, or so long."""
        wait_for([process for host, process in self.hosts.items() if host not in but], seconds)

    def end(self) -> None:
        """Kill all of them at once, and no others."""
        end_until_none(self._alive, "of the hosts")
        self.wait(ENDING_S)

    def _alive(self) -> set[int]:
        """Also those that were started a moment ago, whose environment is still ours."""
        return marked(f"{RUN}={self._mark}") | {one.pid for one in self.hosts.values() if one.poll() is None}


@contextlib.contextmanager
def started(twin: Twin, request: RunRequest) -> Iterator[HostProcesses]:
    """The command on every host, until the end of the block."""
    processes = HostProcesses(twin.entry.folder)
    one_address = len(twin.cluster.hosts) > 1 and not twin.entry.namespaces
    if one_address and listeners(request.port):
        raise UsageError(f"port {request.port} of this machine is in use: choose another with --port")
    try:
        for host, command in commands(twin, request).items():
            process = processes.start(host, command)
            if one_address and process is processes.first:  # the host that listens first coordinates
                deadline = time.monotonic() + _LISTENING_S
                while process.poll() is None and not listeners(request.port) and time.monotonic() < deadline:
                    time.sleep(0.02)
                if process.poll() is not None:  # the next host would coordinate in its place
                    break
        yield processes
    finally:
        processes.end()


@contextlib.contextmanager
def occupied(twin: Twin) -> Iterator[None]:
    """Occupy a twin: one run at a time."""
    try:
        lock = take_lock(twin.entry.folder / _BUSY)
    except OSError as error:
        raise UsageError(f"twin {twin.name} does not exist any more ({error.strerror})") from error
    if lock is None:
        raise UsageError(
            f"a run ({last_run(twin)}) is in progress on twin {twin.name}: wait for its end, or make another twin with "
            "`cordee twin up`"
        )
    try:
        yield
    finally:
        os.close(lock)


def is_running(twin: Twin) -> bool:
    """Whether a run is in progress there."""
    return is_locked(twin.entry.folder / _BUSY)


def last_run(twin: Twin) -> Path | None:
    """The folder of the last run that `cordee twin run` has started there."""
    try:
        return Path((twin.entry.folder / "run").read_text())
    except OSError:
        return None
