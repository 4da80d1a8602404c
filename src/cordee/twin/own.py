"""The processes that one command starts on the hosts of a twin, told from those of other commands there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import IO, Literal, get_args

from cordee.core.errors import UsageError
from cordee.twin.enter import RUN
from cordee.twin.processes import end_until_none, marked, wait_for
from cordee.twin.twin import Twin

Held = Literal["run", "probe"]


@contextlib.contextmanager
def held(twin: Twin, what: Held) -> Iterator[None]:
    """A `run` or a `probe`, one at a time on a twin; the kernel lets go when this process ends, however it ends."""
    with _lock(twin, what) as lock:
        mine = _taken(lock, fcntl.LOCK_EX)
        for one in get_args(Held):
            if (not mine) if one == what else goes_on(twin, one):
                named = f"a {one} ({run_of(twin)})" if one == "run" and run_of(twin) else f"a {one}"
                raise UsageError(
                    f"{named} goes on on twin {twin.name}: wait for its end, or make another twin with `cordee twin up`"
                )
        yield


def goes_on(twin: Twin, what: Held) -> bool:
    """Whether another process holds it."""
    with _lock(twin, what) as lock:
        return not _taken(lock, fcntl.LOCK_SH)


def run_of(twin: Twin) -> Path | None:
    """The folder of the last run that `cordee twin run` has started there."""
    try:
        return Path((twin.entry.folder / "run").read_text())
    except OSError:
        return None


def _lock(twin: Twin, what: Held) -> IO[str]:
    try:
        return (twin.entry.folder / f"{what}.lock").open("w")
    except OSError as error:
        raise UsageError(f"twin {twin.name} is not there any more ({error.strerror})") from error


def _taken(lock: IO[str], how: int) -> bool:
    """Whether we have it now; asked twice, because others take it for a moment to see whether it is held."""
    for wait_s in (0.05, 0.0):
        try:
            fcntl.flock(lock, how | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(wait_s)
    return False


class Own:
    """The processes of a command on the hosts: the first of each host, and all that came of them."""

    def __init__(self) -> None:
        """None yet."""
        # In the environment: workers have sessions of their own, and parents that may have ended.
        self._mark = secrets.token_hex(16)
        self.hosts: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, host: str, command: Sequence[str], log: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
        """A host's command; it speaks into `log`, or where we do."""
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

    def end(self) -> None:
        """End all of them at once, and no others."""
        end_until_none(self._alive, "of the hosts")

    def wait(self, seconds: float, but: Collection[str] = ()) -> None:
        """Until the first process of each host, `but` these, has ended, or so long."""
        wait_for([process for host, process in self.hosts.items() if host not in but], seconds)

    def _alive(self) -> set[int]:
        """Also those that were started a moment ago, whose environment is still ours."""
        return marked(f"{RUN}={self._mark}") | {one.pid for one in self.hosts.values() if one.poll() is None}
