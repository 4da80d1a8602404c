"""The processes that one command starts on the hosts of a twin, told from those of other commands there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from typing import IO

from cordee.core.errors import CordeeError, UsageError
from cordee.twin.enter import RUN
from cordee.twin.quota import end_all, marked
from cordee.twin.twin import Twin

_ENDING_S = 15.0


@contextlib.contextmanager
def held(twin: Twin, what: str) -> Iterator[None]:
    """One `run`, one `probe` at a time on a twin; the kernel lets go when this process ends, however it ends."""
    try:
        lock = (twin.entry.folder / f"{what}.lock").open("w")
    except OSError as error:
        raise UsageError(f"twin {twin.name} is not there any more ({error.strerror})") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"a {what} goes on on twin {twin.name}: wait for its end, or make another twin with `cordee twin up`"
            ) from None
        yield


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
        """End all of them at once, and nobody else's."""
        deadline = time.monotonic() + _ENDING_S
        while pids := self._alive():
            end_all(sorted(pids))
            if time.monotonic() > deadline:
                raise CordeeError(f"processes {sorted(pids)} of the hosts do not end")
            time.sleep(0.01)

    def wait(self, seconds: float, but: Collection[str] = ()) -> None:
        """Until the first process of each host, `but` these, has ended, or so long."""
        wait_for([process for host, process in self.hosts.items() if host not in but], seconds)

    def _alive(self) -> set[int]:
        """Also those that were started a moment ago, which still look as we do."""
        return marked(f"{RUN}={self._mark}") | {one.pid for one in self.hosts.values() if one.poll() is None}


def wait_for(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    """Until all of them have ended, or so long."""
    deadline = time.monotonic() + seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
