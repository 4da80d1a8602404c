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

    def folder(self, host: str) -> Path | None:
        """A host's group."""
        return self._place.mount / namespace_of(self._twin, host) if self._place is not None else None

    def group(self, host: str) -> Path | None:
        """It, if it is there and ours: another user may have a twin of the same name."""
        folder = self.folder(host)
        return folder if folder is not None and _is_own(folder) else None

    def make(self, host: str, cpu: float | None) -> None:
        """Make a host's group and give it its quota; `CordeeError` if that cannot be."""
        place, folder = self._where(host)
        control = place.mount / "cgroup.subtree_control"
        try:
            # Version 2 gives a controller to groups below only if the group above says so.
            if place.version == 2 and "cpu" not in control.read_text().split():
                control.write_text("+cpu")
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise CordeeError(f"{folder} cannot be made: {error.strerror}") from error
        self.limit(host, cpu)

    def limit(self, host: str, cpu: float | None) -> None:
        """Change a host's quota, at once; if that cannot be, it has the one that it had."""
        place, folder = self._where(host)
        if self.group(host) is None:
            raise CordeeError(f"host {host} has no CPU share: there is no group {folder} of this user's")
        period, quota = quota_of(cpu)
        if place.version == 2:
            files = {"cpu.max": f"{quota or 'max'} {period}"}
        else:
            files = {"cpu.cfs_period_us": str(period), "cpu.cfs_quota_us": str(quota or -1)}
        before = {name: text for name in files if (text := " ".join(_words(folder / name)))}
        try:
            _write(folder, files)
        except OSError as error:
            with contextlib.suppress(OSError):
                _write(folder, before)
            asked = "no limit" if cpu is None else f"cpu={cpu:g}"
            advice = "Leave cpu= out, or make the control groups writable"
            if error.errno == errno.EINVAL:
                advice = f"The group {place.mount}, or one above it, has a smaller quota: give less"
            raise CordeeError(f"host {host} cannot have {asked}: {error.strerror}. {advice}") from error

    def _where(self, host: str) -> tuple[ControlGroup, Path]:
        folder = self.folder(host)
        if self._place is None or folder is None:
            raise CordeeError(f"host {host} cannot have a CPU share: {self.missing}")
        return self._place, folder

    def processes(self, host: str) -> list[int]:
        """The processes of a host, as far as they have a number here."""
        folder = self.group(host)
        # Those of another PID namespace are shown as 0, which to `kill` means all our own.
        return [int(word) for word in _words(folder / "cgroup.procs") if word != "0"] if folder else []

    def left(self) -> list[Path]:
        """The groups of this twin that are there."""
        groups = self._place.mount.glob(namespace_of(self._twin, "*")) if self._place is not None else ()
        return sorted(filter(_is_own, groups))

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


def _write(folder: Path, files: dict[str, str]) -> None:
    if "cpu.cfs_period_us" in files:
        (folder / "cpu.cfs_quota_us").write_text("-1")  # a period alone may not fit to the quota that was
    for name, text in files.items():
        (folder / name).write_text(text)


def _is_own(folder: Path) -> bool:
    try:
        return folder.stat().st_uid == os.geteuid()
    except OSError:
        return False


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
