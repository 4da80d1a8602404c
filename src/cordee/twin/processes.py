"""Processes of a twin's hosts: find them by what marks them, wait for them, kill them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import psutil

from cordee.core.errors import CordeeError

_ENDING_S = 15.0


def marked(mark: str) -> set[int]:
    """The processes that were started with this `NAME=value` in their environment, or forked from one that was."""
    name, _, value = mark.partition("=")
    pids = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
            if process.environ().get(name) == value:
                pids.add(process.pid)
    return pids


def inhabitants(numbers: Collection[tuple[int, int]]) -> set[int]:
    """The processes in network namespaces of these numbers; also in those that have lost their names."""
    inside = set()
    for pid in psutil.pids() if numbers else ():
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if number_of(Path(f"/proc/{pid}/ns/net")) in numbers:
                inside.add(pid)
    return inside


def number_of(namespace: Path) -> tuple[int, int]:
    """What the kernel knows a namespace by."""
    status = namespace.stat()
    return status.st_dev, status.st_ino


def end_all(pids: Iterable[int]) -> None:
    """Kill all of them; those that have gone do not matter."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end_until_none(look: Callable[[], Collection[int]], whose: str) -> None:
    """Kill what `look` finds until it finds nothing; `CordeeError` if that takes too long."""
    deadline = time.monotonic() + _ENDING_S
    while pids := sorted(look()):
        end_all(pids)
        if time.monotonic() > deadline:
            raise CordeeError(f"processes {pids} {whose} do not end")
        time.sleep(0.01)


def wait_for(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    """Until all of them have ended, or so long."""
    deadline = time.monotonic() + seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
