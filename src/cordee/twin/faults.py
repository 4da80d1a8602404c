"""Faults done to a twin, by a schedule or by a command, and put on the record of the run."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psutil

from cordee.core.errors import UsageError
from cordee.core.eventlog import append_event
from cordee.core.events import FaultEvent
from cordee.twin.cluster import read_setting
from cordee.twin.commands import is_running, last_run
from cordee.twin.follow import RunFollower, follow_run
from cordee.twin.schedule import Action, choose
from cordee.twin.twin import Twin

_SIGNALS = {"kill": signal.SIGKILL, "pause": signal.SIGSTOP, "resume": signal.SIGCONT}

Say = Callable[[str], None]


def do_by_hand(twin: Twin, action: Action, folder: Path | None, say: Say) -> None:
    """What a user does to a host, or to a worker of the run in `folder`; it is on the record of that run."""
    if not action.host:
        Faults(twin, follow_run(twin, folder), 0, say).by_hand(action)
        return
    _change(twin, action)
    if (current := last_run(twin)) is not None and is_running(twin):
        run = RunFollower(current)
        run.look()
        if not run.ended:
            Faults(twin, run, 0, say).record(str(action))


class Faults:
    """Does what a schedule or a user says, and writes down that it was done."""

    def __init__(self, twin: Twin, run: RunFollower, seed: int, say: Say) -> None:
        """Nothing has happened. `seed` decides which worker `random` is."""
        self._twin, self._run, self._seed, self._say = twin, run, seed, say
        self._drawn = 0
        self.struck: set[str] = set()
        """Hosts that something was done to: how they end is no news."""

    def do(self, action: Action) -> None:
        """One action of a schedule, now; that its worker was not there any more is on record too."""
        what = str(action)
        if not action.host:
            try:
                what = self._signal(action)
            except UsageError as error:
                what = str(error)
        else:
            if action.verb in ("cut", "kill"):
                self.struck.add(action.host)
            _change(self._twin, action)
        self.record(what)

    def by_hand(self, action: Action) -> None:
        """A user's signal; `UsageError`, and nothing on record, when the worker is not there."""
        if self._run.ended:
            raise UsageError(f"{action}: the run in {self._run.folder} has ended")
        try:
            self.record(self._signal(action))
        except UsageError as error:
            there = ", ".join(map(str, sorted(self._run.workers))) or "none"
            raise UsageError(f"{error}. Workers of the run in {self._run.folder}: {there}") from None

    def record(self, what: str) -> None:
        """Tell the user, and the run's events."""
        self._say(f"step {self._run.step}: {what}")
        append_event(self._run.folder / "events.jsonl", FaultEvent(what))

    def _signal(self, action: Action) -> str:
        """Send a worker its signal; `UsageError` if it is not in the run, or not any more."""
        workers, number = self._run.workers, action.worker
        if action.verb == "resume":  # one that was paused was evicted, and its process may still be there
            workers = self._run.gone | workers
        if number is None:
            self._drawn += 1
            if not workers:
                raise UsageError(f"{action.verb} random worker: there is none")
            number = choose(self._seed, self._drawn, sorted(workers))
        if number not in workers:
            raise UsageError(f"{action.verb} worker {number}: it is not there any more")
        # By its host's processes: the number alone could be another process's by now.
        _, pid = workers[number]
        host = next((name for name in self._twin.cluster.names if pid in self._twin.processes(name)), None)
        try:
            process = psutil.Process(pid)
            if host is None or process.status() == psutil.STATUS_ZOMBIE:
                raise psutil.NoSuchProcess(pid)
            process.send_signal(_SIGNALS[action.verb])
        except psutil.NoSuchProcess:
            gone = f"{action.verb} worker {number}: process {pid} is not there any more"
            raise UsageError(gone) from None
        self.struck.add(host)
        return f"{action.verb} worker {number} (process {pid} on {host})"


def _change(twin: Twin, action: Action) -> None:
    """Do to a host what an action says."""
    if action.verb == "set":
        twin.set(action.host, {key: read_setting(key, text) for key, text in action.settings})
    elif action.verb == "kill":
        twin.end_processes(action.host)
    else:
        twin.plug(action.host, "down" if action.verb == "cut" else "up")
