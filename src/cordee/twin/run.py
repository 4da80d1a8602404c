"""A run on a twin: the ordinary command on each of its hosts, and faults while it goes on."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cordee.core import interrupts
from cordee.core.errors import CordeeError, Interrupted, UsageError
from cordee.core.events import append_event
from cordee.core.interpreter import python_module
from cordee.core.machine import listeners
from cordee.twin.cluster import Cluster
from cordee.twin.faults import Faults, Say
from cordee.twin.home import bring_home
from cordee.twin.own import Own, held, run_of
from cordee.twin.processes import wait_for
from cordee.twin.schedule import Progress, Schedule
from cordee.twin.seen import Seen
from cordee.twin.statements import place
from cordee.twin.twin import Twin

LOOK_EVERY_S = 0.02
PASSED_ON = signal.SIGTERM
"""To a run it says what Ctrl-C does, and a host that is still importing ends without a stack trace."""
_LEAVING_S, _LEFT_S = 20.0, 5.0
"""How long the other hosts may take to end after a run that ended well, and after one that did not."""
_TOGETHER_S = 3.0
"""What ends one host before they meet may be about to end the first too, which then says so itself."""
_LISTENING_S = 60.0
_MEETING = "the hosts of a twin find each other by themselves"
_REPEATED = "cordee: the run was ended: "
"""How a host's last line begins that repeats what the first host has said."""
_GIVEN = {
    "--workers": 'each host has its own number of workers, such as --hosts "2 x workers=2"',
    **dict.fromkeys(("--rendezvous", "--nodes", "--token-file", "--trusted-network"), _MEETING),
}
"""Options of `cordee train` that the twin gives to each host, and what to do instead."""


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
    behind: tuple[str, ...] = ()
    """What stands behind `--`: a script's own, whatever it looks like."""


def commands(twin: Twin, asked: Asked) -> dict[str, list[str]]:
    """What is started on each host: what a user would type there."""
    cluster = twin.cluster
    meeting = cluster.names[0] if twin.entry.namespaces else "127.0.0.1"
    result = {}
    for host in cluster.hosts:
        words = python_module("cordee", asked.command)
        words += ["--workers", str(host.workers), "--out", str(_out(twin, asked, host.name))]
        if "--threads" not in asked.options:
            words += ["--threads", str(threads_of(cluster, host.name))]
        if len(cluster.hosts) > 1:
            words += ["--rendezvous", f"{meeting}:{asked.port}", "--nodes", str(len(cluster.hosts))]
            words += ["--token-file", str(twin.entry.token_file), "--trusted-network"]
        # The target last but for the options: to `cordee run` what follows its script belongs to the script.
        target = [str(asked.target), *asked.options] if asked.command == "run" else [*asked.options, str(asked.target)]
        target += ["--", *asked.behind] if asked.behind else []
        result[host.name] = twin.command(host.name, [*words, *target])
    return result


def _out(twin: Twin, asked: Asked, host: str) -> Path:
    """A host's folder of the run; the first one's is the user's."""
    return asked.out if host == twin.cluster.names[0] else twin.entry.folder / f"out-{host}"


def check_options(options: Sequence[str]) -> None:
    """Refuse options of a host's command that the twin gives itself."""
    for name in (word.partition("=")[0] for word in options):
        if name in _GIVEN:
            raise UsageError(f"{name} cannot be given here: {_GIVEN[name]}")


def threads_of(cluster: Cluster, host: str) -> int:
    """Threads that a worker of this host computes with: no more than its part of the processor."""
    chosen = cluster.host(host)
    cores = len(os.sched_getaffinity(0))
    mine = chosen.cpu if chosen.cpu is not None else cores * chosen.workers / cluster.workers
    return max(1, int(mine / chosen.workers))


def check_possible(schedule: Schedule, twin: Twin) -> None:
    """Refuse a schedule that this twin cannot follow, before anything starts."""
    for rule in schedule.rules:
        for action in rule.actions:
            for what in ("link",) if action.verb in ("cut", "mend") else dict(action.settings):
                if why := twin.lacking(what):
                    raise UsageError(f"{place(rule.line, action.word, str(action).split()[0])}: {why}")


def run(twin: Twin, asked: Asked, schedule: Schedule, *, seed: int = 0, say: Say) -> int:
    """Start it on all hosts, let the faults happen, and wait for its end; the exit code of the first host.

    If a host is lost before they meet, it is that host's exit code. One run at a time on a twin.
    """
    with held(twin, "run"):
        seen = Seen(asked.out)
        seen.skip()
        _clear(twin, asked, say)
        faults = Faults(twin, seen, seed, say)
        with _started(twin, asked) as own, _passed_on(first := own.hosts[twin.cluster.names[0]]) as asked_to_end:
            reached, absent = _follow(twin, own, schedule, faults, seen, say)
            if absent is None and asked_to_end and first.returncode == -PASSED_ON:  # it could not report it itself
                raise Interrupted(_stopped(seen))
            for message in missed(schedule, seen.first, reached) if seen.began is not None else ():
                say(message)
                append_event(asked.out / "events.jsonl", "warning", message=message)
            if absent is None:
                # Not for those that something was done to: a host that is cut off waits for a while before it gives up.
                own.wait(_LEAVING_S if first.returncode == 0 else _LEFT_S, but=faults.struck)
                _tell_ends(twin, own, faults.struck, say)
        _bring(twin, asked, say)
        if absent is not None:
            return own.hosts[absent].returncode or CordeeError.code
        return first.returncode


def _clear(twin: Twin, asked: Asked, say: Say) -> None:
    """Nothing of a former run stays on the hosts; if it is this one that goes on, what they wrote comes with it."""
    now = asked.out.resolve()
    if run_of(twin) == now:
        _bring(twin, asked, say)
    for host in twin.cluster.names[1:]:
        shutil.rmtree(_out(twin, asked, host), ignore_errors=True)
    (twin.entry.folder / "run").write_text(str(now))


def _bring(twin: Twin, asked: Asked, say: Say) -> None:
    folders = [_out(twin, asked, host) for host in twin.cluster.names[1:]]
    if names := bring_home(folders, asked.out):
        say(f"other hosts wrote {', '.join(names)}: brought to {asked.out}")


def missed(schedule: Schedule, first: int, reached: Progress) -> list[str]:
    """A sentence for each statement that nothing came of, in a start that went from step `first` to `reached`."""
    said = []
    for rule in schedule.missed(Progress(first), reached):
        later = not rule.when.timed and rule.when.after(first) is None
        why = f"this start began after step {first}" if later else "the run ended before"
        said.append(f"did not happen, {why}: {rule}")
    return said


def _follow(
    twin: Twin, own: Own, schedule: Schedule, faults: Faults, seen: Seen, say: Say
) -> tuple[Progress, str | None]:
    """Until the first host's command ends; how far the run came, and the host that was lost before they met."""
    first = own.hosts[twin.cluster.names[0]]
    before, absent = Progress(), None
    while first.poll() is None:
        due, before = seen.due(schedule, before)
        for action in due:
            faults.do(action)
        lost = [host for host, process in own.hosts.items() if process is not first and process.poll() is not None]
        if absent is None and not seen.met and lost:
            wait_for([first], _TOGETHER_S)
            seen.look()
            if first.poll() is None and not seen.met:
                absent = lost[0]
                how = _ended(own.hosts[absent].returncode)
                say(f"host {absent} {how} before the hosts had met: {_last_line(twin, absent)}")
                first.terminate()  # it would wait for ten minutes
        time.sleep(LOOK_EVERY_S)
    return before, absent


def _tell_ends(twin: Twin, own: Own, struck: set[str], say: Say) -> None:
    """How the hosts ended, unless they said so themselves or something was done to them."""
    for host, process in own.hosts.items():
        code = process.poll()
        if host == twin.cluster.names[0]:
            if code is not None and code < 0:
                say(f"host {host}, which coordinates, {_ended(code)}")
        elif code != 0 and host not in struck and not (last := _last_line(twin, host)).startswith(_REPEATED):
            say(f"host {host} {_ended(code)}: {last}")


def _stopped(seen: Seen) -> str:
    """What came of a run whose first host a signal has ended."""
    seen.look()
    if not seen.met:
        return "stopped before the run began"
    return f"stopped after step {seen.step}" if seen.step > seen.first else "stopped before its first step"


def _ended(code: int | None) -> str:
    if code is None:
        return "had to be ended"
    return f"ended with code {code}" if code >= 0 else f"was ended by signal {-code}"


@contextlib.contextmanager
def _started(twin: Twin, asked: Asked) -> Iterator[Own]:
    """The command on every host: the first one speaks on our terminal, the others into a file."""
    with contextlib.ExitStack() as stack:
        own = Own()
        one_address = len(twin.cluster.hosts) > 1 and not twin.entry.namespaces
        if one_address and listeners(asked.port):
            raise UsageError(f"port {asked.port} of this machine is in use: choose another with --port")
        try:
            for host, command in commands(twin, asked).items():
                log = stack.enter_context(_log(twin, host).open("wb")) if own.hosts else None
                process = own.start(host, command, log)
                if one_address and len(own.hosts) == 1:  # the host that listens first coordinates
                    _await_listening(process, asked.port)
                    if process.poll() is not None:  # the next one would coordinate in its place
                        break
            yield own
        finally:
            own.end()
            own.wait(_LEAVING_S)


@contextlib.contextmanager
def _passed_on(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """What asks us to end is passed on, as SIGTERM; we end when it has. The signals that came."""
    came: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        came.append(number)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(PASSED_ON)

    with interrupts.handled(pass_on):
        yield came


def _await_listening(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _LISTENING_S
    while process.poll() is None and not listeners(port) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)


def _log(twin: Twin, host: str) -> Path:
    return twin.entry.folder / f"{host}.log"


def _last_line(twin: Twin, host: str) -> str:
    lines = [line for line in _log(twin, host).read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
