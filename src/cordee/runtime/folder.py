"""A run's folder: who holds it, what a resumed run finds in it, and what is left of a start that failed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from cordee.core.errors import CordeeError, StorageError, UsageError
from cordee.core.events import read_events
from cordee.runtime.wording import COMMAND, Wording

LOCK = "run.lock"
OURS = ("report.html", "events.jsonl", "run.json")
"""What a start writes before the first step."""
UNLOCKABLE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""What file systems answer that know no locks."""


class Hold:
    """The right to write into a run's folder; the kernel takes it back when its process ends, however it ends."""

    def __init__(self, folder: Path, wording: Wording = COMMAND) -> None:
        """Take it; refused with the name of whoever has it."""
        self._path = folder / LOCK
        while True:
            try:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            except OSError as error:
                raise StorageError(f"cannot write {self._path.absolute()}: {error.strerror}") from error
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(self._file, 1000).decode(errors="replace").strip()
                os.close(self._file)
                raise UsageError(
                    f"{folder} is still being trained by {holder or 'another process'}: wait for its end, or choose "
                    f"another folder with {wording.option('out')}"
                ) from None
            except OSError as error:
                if error.errno not in UNLOCKABLE:
                    os.close(self._file)
                    raise StorageError(f"cannot lock {self._path.absolute()}: {error.strerror}") from error
            if self._is_there():
                break
            os.close(self._file)  # of a run that has just ended, and took its file away
        with contextlib.suppress(OSError):  # a full disk: then others are refused without the name
            os.ftruncate(self._file, 0)
            os.write(self._file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())

    def release(self) -> None:
        """Give it back; a second call does nothing."""
        if self._file < 0:
            return
        with contextlib.suppress(OSError):
            self._path.unlink()
        with contextlib.suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_UN)  # also where a child of this process has inherited it
        os.close(self._file)
        self._file = -1

    def _is_there(self) -> bool:
        """Whether what we locked is the file that others will find."""
        try:
            found = os.stat(self._path)
        except OSError:
            return False
        mine = os.fstat(self._file)
        return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)


# ------------------------------------------------------------- what is in it


def is_begun(folder: Path) -> bool:
    """Whether the folder holds a run that could be gone on with, or one that has ended."""
    return any(folder.glob("checkpoints/step-*")) or (folder / "result.json").exists()


def saved_step(folder: Path) -> int | None:
    """The step of the newest checkpoint; None if there is none."""
    steps = [path.name.removeprefix("step-") for path in folder.glob("checkpoints/step-*")]
    return max((int(step) for step in steps if step.isdecimal()), default=None)


def former_settings(folder: Path) -> dict[str, str]:
    """The settings of the job with which the run in this folder was started last; none if nobody wrote them down."""
    try:
        found = json.loads((folder / "run.json").read_text(encoding="utf-8")).get("settings", {})
    except (OSError, ValueError, AttributeError):
        return {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


# ------------------------------------------------------------- a start that came to nothing


@contextlib.contextmanager
def tidied(folder: Path, *, ours: bool) -> Iterator[None]:
    """If what happens in here fails before the first step, a folder whose name was ours goes away again."""
    try:
        yield
    except BaseException:
        if ours and not is_begun(folder) and not _stepped(folder):
            _remove(folder)
        raise


def _stepped(folder: Path) -> bool:
    try:
        return any(event["event"] == "step" for event in read_events(folder / "events.jsonl"))
    except FileNotFoundError:
        return False
    except (OSError, CordeeError):
        return True  # nobody knows, so it stays


def _remove(folder: Path) -> None:
    """What we wrote, and the folder, unless somebody put something else there, or another host of the run is there."""
    try:
        hold = Hold(folder)
    except CordeeError:
        return
    with contextlib.suppress(OSError):
        for name in OURS:
            (folder / name).unlink(missing_ok=True)
    hold.release()
    with contextlib.suppress(OSError):
        folder.rmdir()
        folder.parent.rmdir()  # only if this was the first run there
