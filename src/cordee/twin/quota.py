"""A host's share of the processor: a control group (version 1 or 2) with a quota, which its processes are put into."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from cordee.core.cgroup import ROOT, Place, place
from cordee.core.errors import CordeeError
from cordee.twin.network import namespace_of

_PERIOD_US, _LEAST_QUOTA_US = 20_000, 1_000
"""Short, so that a slow host is slow all the time and not stopped for a tenth of a second; the kernel's least quota."""
_ENDING_S = 10.0


class Quotas:
    """The control groups of a twin's hosts."""

    def __init__(self, twin: str, root: Path = ROOT) -> None:
        """Nothing is made yet; without control groups everything but `make` does nothing."""
        self._twin = twin
        self._place: Place | None = place("cpu", root)

    @property
    def missing(self) -> str:
        """Why there are no quotas here; empty if there are."""
        if self._place is None:
            return "no control group for processor time is mounted"
        return "" if os.access(self._place.mount, os.W_OK) else f"{self._place.mount} cannot be written"

    def folder(self, host: str) -> Path | None:
        """A host's group."""
        return self._place.mount / namespace_of(self._twin, host) if self._place is not None else None

    def make(self, host: str, cpu: float | None) -> None:
        """Make a host's group and give it its quota."""
        folder = self.folder(host)
        if folder is None or self._place is None:
            raise CordeeError(f"host {host} cannot have a CPU share: {self.missing}")
        try:
            if self._place.version == 2:
                _pass_on(self._place.mount)
            folder.mkdir(exist_ok=True)
            self.limit(host, cpu)
        except OSError as error:
            raise CordeeError(f"{folder} cannot be made: {error.strerror}") from error

    def limit(self, host: str, cpu: float | None) -> None:
        """Change a host's quota, at once."""
        folder = self.folder(host)
        if folder is None or self._place is None or not folder.exists():
            return
        period, quota = quota_of(cpu)
        if self._place.version == 2:
            (folder / "cpu.max").write_text(f"{'max' if quota is None else quota} {period}")
            return
        (folder / "cpu.cfs_quota_us").write_text("-1")  # a period alone may not fit to the quota that was
        (folder / "cpu.cfs_period_us").write_text(str(period))
        (folder / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))

    def processes(self, host: str) -> list[int]:
        """The processes of a host."""
        folder = self.folder(host)
        try:
            return [int(word) for word in (folder / "cgroup.procs").read_text().split()] if folder else []
        except OSError:
            return []

    def remove(self, host: str) -> None:
        """Remove a host's group; its processes have ended."""
        folder = self.folder(host)
        deadline = time.monotonic() + _ENDING_S
        while folder is not None and folder.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                folder.rmdir()
                return
            time.sleep(0.01)  # the kernel takes a moment to forget a process that has ended


def quota_of(cpu: float | None) -> tuple[int, int | None]:
    """Period and quota in microseconds; no quota without a limit."""
    if cpu is None:
        return _PERIOD_US, None
    period = max(_PERIOD_US, round(_LEAST_QUOTA_US / cpu))
    return period, max(_LEAST_QUOTA_US, round(cpu * period))


def end_all(pids: list[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to all of them; those that have gone do not matter."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def marked(mark: str) -> set[int]:
    """The processes that were started with this in their environment, or forked from one that was."""
    found = set()
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):  # gone, somebody else's, or no process
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found


def _pass_on(mount: Path) -> None:
    """Version 2 gives a controller to groups below only if the group above says so."""
    control = mount / "cgroup.subtree_control"
    if "cpu" not in control.read_text().split():
        control.write_text("+cpu")
