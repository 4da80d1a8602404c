"""A run on a twin: the ordinary command on each of its hosts, and faults meanwhile."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from cordee.core import interrupts
from cordee.core.errors import CordeeError, Interrupted, UsageError
from cordee.core.eventlog import append_event
from cordee.core.events import WarningEvent
from cordee.twin.commands import ENDING_S, HostProcesses, RunRequest, last_run, occupied, started
from cordee.twin.faults import Faults, Say
from cordee.twin.follow import RunFollower
from cordee.twin.processes import wait_for
from cordee.twin.schedule import Progress, Schedule
from cordee.twin.twin import Twin

LOOK_EVERY_S = 0.02
PASSED_ON = signal.SIGTERM
"""To a run it means what Ctrl-C does, and a host that is still importing ends without a stack trace."""
_LEFT_S = 5.0
"""How long the other hosts may take to end after a run that failed."""
_TOGETHER_S = 3.0
"""What ends one host before they meet may be about to end the first too, which then reports it itself."""
_REPEATED = "cordee: the run was ended: "
"""How a host's last line begins that repeats what the first host has printed."""


def check_possible(schedule: Schedule, twin: Twin) -> None:
    """Refuse a schedule that this twin cannot follow, before anything starts."""
    for rule in schedule.rules:
        for action in rule.actions:
            for what in ("link",) if action.verb in ("cut", "mend") else dict(action.settings):
                if why := twin.lacking(what):
                    raise UsageError(f"schedule, '{rule}': {why}")


def run(twin: Twin, request: RunRequest, schedule: Schedule, *, seed: int = 0, say: Say) -> int:
    """Start it on all hosts, let the faults happen, and wait for its end; the exit code of the first host.

    If a host is lost before they meet, it is that host's exit code. One run at a time on a twin.
    """
    with occupied(twin):
        follower = RunFollower(request.out)
        follower.skip()
        if last_run(twin) == request.out.resolve():  # what other hosts wrote of it belongs to the run that is resumed
            _collect(twin, request, say)
        for host in twin.cluster.names[1:]:
            shutil.rmtree(request.folder(twin, host), ignore_errors=True)
        (twin.entry.folder / "run").write_text(str(request.out.resolve()))
        with started(twin, request) as processes:
            code = _watch(processes, follower, schedule, Faults(twin, follower, seed, say), say)
        _collect(twin, request, say)
        return code


def _collect(twin: Twin, request: RunRequest, say: Say) -> None:
    """Move what a run wrote on other hosts to where its user looks for it.

    The worker that speaks for all writes on its own host. Usually that is the first one; once no worker of it is left,
    it is another, whose folder ends with the twin.
    """
    folders = [request.folder(twin, host) for host in twin.cluster.names[1:]]
    if names := collect_files(folders, request.out):
        say(f"other hosts wrote {', '.join(names)}: moved to {request.out}")


def collect_files(folders: Iterable[Path], out: Path) -> list[str]:
    """Move what is not there, or older there, into `out`; the names of what came."""
    moved = []
    for folder in folders:
        for source in (*sorted(folder.glob("checkpoints/step-*")), *sorted(folder.glob("*.safetensors"))):
            target = out / source.relative_to(folder)
            if target.exists() and target.stat().st_mtime_ns >= source.stat().st_mtime_ns:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            hidden = target.with_name(f".brought-{target.name}")
            shutil.move(source, hidden)  # into the same folder first: there it is put in place at once, or not at all
            if target.is_dir():
                shutil.rmtree(target)
            hidden.replace(target)
            moved.append(target.name)
    return moved


def _watch(processes: HostProcesses, follower: RunFollower, schedule: Schedule, faults: Faults, say: Say) -> int:
    """A run that was started on all hosts, until it has ended; its exit code."""
    first = processes.first
    with _passed_on(first) as signals:
        absent, reached = _follow(processes, follower, schedule, faults, say)
        if absent is None and signals and first.returncode == -PASSED_ON:  # it could not report it itself
            raise Interrupted(_stopped(follower))
        for message in schedule.missed(follower.first, reached) if follower.began is not None else ():
            say(message)
            append_event(follower.folder / "events.jsonl", WarningEvent(message))
        if absent is not None:
            return processes.hosts[absent].returncode or CordeeError.code
        # Not for hosts that a fault struck: one that is cut off waits for a while before it gives up.
        processes.wait(ENDING_S if first.returncode == 0 else _LEFT_S, but=faults.struck)
        tell_ends(processes, faults.struck, say)
    return first.returncode


def _follow(
    processes: HostProcesses, follower: RunFollower, schedule: Schedule, faults: Faults, say: Say
) -> tuple[str | None, Progress]:
    """Until the first host's command ends; the host that was lost before they met, and how far the run came."""
    first, absent, reached = processes.first, None, Progress()
    while first.poll() is None:
        due, reached = follower.due(schedule, reached)
        for action in due:
            faults.do(action)
        lost = [host for host, one in processes.hosts.items() if one is not first and one.poll() is not None]
        if absent is None and not follower.met and lost:
            wait_for([first], _TOGETHER_S)
            follower.look()
            if first.poll() is None and not follower.met:
                absent = lost[0]
                how = f"{_ended(processes.hosts[absent].returncode)} before the hosts had met"
                say(f"host {absent} {how}: {processes.last_line(absent)}")
                first.terminate()  # it would wait for ten minutes
        time.sleep(LOOK_EVERY_S)
    return absent, reached


def tell_ends(processes: HostProcesses, struck: Collection[str], say: Say) -> None:
    """How the hosts ended, unless they reported it themselves or a fault struck them."""
    for host, process in processes.hosts.items():
        code = process.poll()
        if process is processes.first:
            if code is not None and code < 0:
                say(f"host {host}, which coordinates, {_ended(code)}")
        elif code != 0 and host not in struck and not (last := processes.last_line(host)).startswith(_REPEATED):
            say(f"host {host} {_ended(code)}: {last}")


def _stopped(follower: RunFollower) -> str:
    """How far a run came whose first host a signal has ended."""
    follower.look()
    if not follower.met:
        return "stopped before the run began"
    return f"stopped after step {follower.step}" if follower.step > follower.first else "stopped before its first step"


def _ended(code: int | None) -> str:
    if code is None:
        return "had to be ended"
    return f"ended with code {code}" if code >= 0 else f"was ended by signal {-code}"


@contextlib.contextmanager
def _passed_on(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Pass the signals that ask us to end on, as SIGTERM; we end when the process has. The signals that came."""
    came: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        came.append(number)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(PASSED_ON)

    with interrupts.handled(pass_on):
        yield came
