"""The temporary folder of a map-reduce: gone at its end, and also when its process was killed, by the next one."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

from cordee.core.errors import StorageError
from cordee.core.locks import take_lock

PREFIX = "cordee-map-reduce-"
LOCK = ".lock"


class Scratch:
    """A new folder among temporary files, locked as long as this is open."""

    def __init__(self) -> None:
        """Make it, after those of processes that are gone were removed."""
        try:
            sweep(Path(tempfile.gettempdir()))
            self.path = tempfile.mkdtemp(prefix=PREFIX)
            self._lock = take_lock(Path(self.path) / LOCK)
        except OSError as error:
            raise StorageError(
                f"cannot write to {tempfile.gettempdir()}: {error.strerror}; set TMPDIR to a folder with room"
            ) from error

    def close(self) -> None:
        """Remove it; may be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def sweep(folder: Path) -> None:
    """Remove what processes of this user have left that were killed."""
    for path in folder.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or not (path / LOCK).exists():
                continue
            lock = take_lock(path / LOCK)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)
