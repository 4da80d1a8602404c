"""A host's share of the processor: a control group (version 1 or 2) with a quota, which its processes are put into."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

from cordee.core.cgroup import ROOT, ControlGroup, control_group
from cordee.core.errors import CordeeError
from cordee.twin.network import namespace_of
from cordee.twin.processes import end_all

_PERIOD_US, _LEAST_QUOTA_US = 20_000, 1_000
"""Short, so that a slow host is slow all the time and not stopped for a tenth of a second; the kernel's least quota."""
_ENDING_S = 10.0


class Quotas:
    """The control groups of a twin's hosts."""

    def __init__(self, twin: str, root: Path = ROOT) -> None:
        """Nothing is made yet; without control groups there are no processes, and nothing is removed."""
        self._twin = twin
        self._place: ControlGroup | None = control_group("cpu", root)

    @property
    def missing(self) -> str:
        """Why there are no quotas here; empty if there are."""
        if self._place is None:
            return "no control group for processor time is mounted"
        if self._place.version == 2 and "cpu" not in _words(self._place.mount / "cgroup.controllers"):
            return f"the cpu controller is not available below {self._place.mount}"
        return "" if os.access(self._place.mount, os.W_OK) else f"{self._place.mount} cannot be written"

    def group(self, host: str) -> Path | None:
        """A host's group, if it is there and ours: another user may have a twin of the same name."""
        return next((folder for folder in self.left() if folder.name == namespace_of(self._twin, host)), None)

    def left(self) -> list[Path]:
        """The groups of this twin that are there, and ours."""
        groups = self._place.mount.glob(namespace_of(self._twin, "*")) if self._place is not None else ()
        return sorted(filter(_is_own, groups))

    def make(self, host: str, cpu: float | None) -> None:
        """Make a host's group and give it its quota; `CordeeError` if that cannot be."""
        if self._place is None:
            raise CordeeError(f"host {host} cannot have a CPU share: {self.missing}")
        control = self._place.mount / "cgroup.subtree_control"
        folder = self._place.mount / namespace_of(self._twin, host)
        try:
            # Version 2 gives a controller to groups below only if the group above says so.
            if self._place.version == 2 and "cpu" not in control.read_text().split():
                control.write_text("+cpu")
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise CordeeError(f"{folder} cannot be made: {error.strerror}") from error
        self.limit(host, cpu)

    def limit(self, host: str, cpu: float | None) -> None:
        """Change a host's quota, at once; `CordeeError` if that cannot be."""
        folder = self.group(host)
        if self._place is None or folder is None:
            raise CordeeError(f"host {host} has no CPU share: it has no control group of this user's")
        period, quota = quota_of(cpu)
        files = [("cpu.max", f"{quota or 'max'} {period}")]
        if self._place.version == 1:  # without a quota first: a period alone may not fit to the quota that was
            numbers = (("quota", -1), ("period", period), ("quota", quota or -1))
            files = [(f"cpu.cfs_{name}_us", str(number)) for name, number in numbers]
        try:
            for name, text in files:
                (folder / name).write_text(text)
        except OSError as error:
            asked = "no limit" if cpu is None else f"cpu={cpu:g}"
            advice = "Leave cpu= out, or make the control groups writable"
            if error.errno == errno.EINVAL:
                advice = f"The group {self._place.mount}, or one above it, has a smaller quota: give less"
            raise CordeeError(f"host {host} cannot have {asked}: {error.strerror}. {advice}") from error

    def processes(self, host: str) -> list[int]:
        """The processes of a host, as far as they have a number here."""
        folder = self.group(host)
        # Those of another PID namespace are shown as 0, which to `kill` means all our own.
        return [int(word) for word in _words(folder / "cgroup.procs") if word != "0"] if folder else []

    def remove(self, host: str) -> None:
        """Remove a host's group. Its processes have ended; one that has come since is ended too."""
        deadline = time.monotonic() + _ENDING_S
        while (folder := self.group(host)) is not None:
            try:
                folder.rmdir()
            except OSError as error:
                if time.monotonic() > deadline:
                    inside = ", ".join(_words(folder / "cgroup.procs")) or "none"
                    raise CordeeError(f"{folder} cannot be removed: {error.strerror}; processes: {inside}") from error
                end_all(self.processes(host))
                time.sleep(0.01)  # the kernel takes a moment to forget a process that has ended


def quota_of(cpu: float | None) -> tuple[int, int | None]:
    """Period and quota in microseconds; no quota without a limit."""
    if cpu is None:
        return _PERIOD_US, None
    period = max(_PERIOD_US, round(_LEAST_QUOTA_US / cpu))
    return period, max(_LEAST_QUOTA_US, round(cpu * period))


def _is_own(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return folder.stat().st_uid == os.geteuid()
    return False


def _words(file: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return file.read_text().split()
    return []
