"""Faults done to a twin, by a schedule or by a person's hand, and put on the record of the run that suffers them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from cordee.core.errors import UsageError
from cordee.core.events import append_event
from cordee.twin.cluster import read_setting
from cordee.twin.schedule import Action, Cut, KillHost, Mend, Set, Signal, choose
from cordee.twin.seen import Seen
from cordee.twin.twin import Twin

_SIGNALS = {"kill": signal.SIGKILL, "pause": signal.SIGSTOP, "resume": signal.SIGCONT}

Say = Callable[[str], None]


class NotThere(UsageError):
    """The worker that a signal is meant for is not in the run, or not any more."""


class Faults:
    """Does what a schedule, or a person, says; and writes down that it was done."""

    def __init__(self, twin: Twin, seen: Seen, seed: int, say: Say) -> None:
        """Nothing has happened. `seed` decides who `random` is."""
        self._twin, self._seen, self._seed, self._say = twin, seen, seed, say
        self._drawn = 0
        self.struck: set[str] = set()
        """Hosts that something was done to: how they end is no news."""

    def do(self, action: Action) -> None:
        """One action of a schedule, now; that its worker was not there any more is on record too."""
        what = str(action)
        if isinstance(action, Signal):
            try:
                what = self._signal(action)
            except NotThere as error:
                what = str(error)
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
        self._record(what)

    def by_hand(self, action: Signal) -> None:
        """A person's signal; `UsageError`, and nothing on record, when there is nobody to send it to."""
        if self._seen.ended:
            raise UsageError(f"{action}: the run in {self._seen.folder} has ended")
        try:
            self._record(self._signal(action))
        except NotThere as error:
            there = ", ".join(map(str, sorted(self._seen.workers))) or "none"
            raise UsageError(f"{error}. Workers of the run in {self._seen.folder}: {there}") from None

    def done_by_hand(self, action: Cut | Mend | Set) -> None:
        """A person has done this to a host: it belongs to the record, unless the run has ended."""
        if not self._seen.ended:
            self._record(str(action))

    def _record(self, what: str) -> None:
        self._say(f"step {self._seen.step}: {what}")
        append_event(self._seen.folder / "events.jsonl", "fault", what=what)

    def _signal(self, action: Signal) -> str:
        workers = self._seen.workers
        number = action.worker
        if number is None:
            self._drawn += 1
            if not workers:
                raise NotThere(f"{action.kind} random worker: there is none")
            number = choose(self._seed, self._drawn, sorted(workers))
        if number not in workers:
            raise NotThere(f"{action.kind} worker {number}: it is not there any more")
        said, pid = workers[number]
        # A host that is no namespace goes by the machine's name; the number alone could be another process's by now.
        names = sorted(self._twin.cluster.names, key=lambda name: name != said)
        host = next((name for name in names if pid in self._twin.processes(name)), None)
        gone = NotThere(f"{action.kind} worker {number}: process {pid} is not there any more")
        if host is None or not _lives(pid):
            raise gone
        try:
            os.kill(pid, _SIGNALS[action.kind])
        except ProcessLookupError:  # it ended since we looked
            raise gone from None
        self.struck.add(host)
        return f"{action.kind} worker {number} (process {pid} on {host})"


def _lives(pid: int) -> bool:
    """Whether a process is more than an exit code that its parent has not asked for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
