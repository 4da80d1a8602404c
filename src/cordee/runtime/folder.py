"""A run's folder: who holds it, what a resumed run finds in it, and what is left of a start that failed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from cordee.core.errors import CheckpointError, CordeeError, StorageError, UsageError
from cordee.core.eventlog import read_events
from cordee.core.events import EndEvent, Event, FailureEvent, StartEvent, StepEvent
from cordee.core.locks import is_locked, take_lock
from cordee.runtime.wording import COMMAND, Wording
from cordee.state.index import newest_sealed

LOCK = "run.lock"
OURS = ("report.html", "events.jsonl", "run.json")
"""What a start writes before the first step."""
GLANCE_S = 0.3
"""A process that only looks whether a folder is held holds it for a moment itself."""
RELEASE_S = 10.0
"""Until a file system notices that the host of a holder is gone, or until that holder has ended its side of a run."""


class Hold:
    """The right to write into a run's folder; the kernel takes it back when its process ends, however it ends."""

    def __init__(self, folder: Path, wording: Wording = COMMAND, patience_s: float = GLANCE_S) -> None:
        """Take it; refused with the name of its holder, if that does not give it back meanwhile."""
        self._path = folder / LOCK
        out, deadline = wording.option("out"), time.monotonic() + patience_s
        try:
            while (handle := take_lock(self._path)) is None:
                if time.monotonic() > deadline:
                    holder = self._path.read_text(errors="replace").strip() or "another process"
                    raise UsageError(
                        f"{folder} is still being trained by {holder}: wait for its end, or choose another folder "
                        f"with {out}"
                    )
        except OSError as error:
            raise StorageError(
                f"cannot write {self._path.absolute()}: {error.strerror}. Choose another folder with {out}"
            ) from error
        self._file = handle
        with contextlib.suppress(OSError):  # a full disk: then others are refused without the name
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())

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


def is_held(folder: Path) -> bool | None:
    """Whether a process of this machine writes into a run's folder; None where that cannot be told from here."""
    try:
        host = (folder / LOCK).read_text(errors="replace").strip().rpartition(" on ")[2]
        # Not every file system shows the locks of other machines.
        return is_locked(folder / LOCK) if host == socket.gethostname() else None
    except FileNotFoundError:
        return False  # the holder of a folder has made the file first
    except OSError:
        return None


# ------------------------------------------------------------- whether to begin there


def make(folder: Path, wording: Wording) -> None:
    """Make the folder of a run, unless it is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        files = [path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()]
        why = f"{files[0].absolute()} is a file" if files else error.strerror
        raise StorageError(
            f"cannot make the folder {folder.absolute()}: {why}. Choose another folder with {wording.option('out')}"
        ) from error


def is_there(folder: Path, was: os.stat_result) -> bool:
    """Whether the folder is still the one that it was; of a disk that does not answer, writing will tell."""
    try:
        return os.path.samestat(folder.stat(), was)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def check(folder: Path, resume: bool, script: bool, wording: Wording, *, held: bool = False) -> None:
    """Refuse to go on with nothing, and to begin where a run is. `held`: its state may be in memory alone."""
    name = wording.option("out")
    if resume and not held and not _is_resumable(folder):
        raise CheckpointError(
            f"{folder} holds no checkpoint to go on with: start without {wording.flag('resume')}, "
            f"or name the run's folder with {name}"
        )
    if not resume and is_begun(folder):
        on = "" if script or not _is_resumable(folder) else f"go on with it by {wording.flag('resume')}, or "
        raise UsageError(f"{folder} holds a run already: {on}choose another folder with {name}")


# ------------------------------------------------------------- what is in it


def is_begun(folder: Path) -> bool:
    """Whether the folder holds a run that could be gone on with, one that has ended, or a script's."""
    return _is_resumable(folder) or _is_scripts(folder)


def _is_resumable(folder: Path) -> bool:
    return any(folder.glob("checkpoints/step-*")) or (folder / "result.json").exists()


def _is_scripts(folder: Path) -> bool:
    """Whether a script trained here, or came to its end: its record is all that we have of it."""
    return _about(folder).job is None and _records(
        folder, lambda event: isinstance(event, StepEvent) or (isinstance(event, EndEvent) and event.code == 0)
    )


def saved_step(folder: Path) -> int | None:
    """The step of the newest checkpoint, but for those that are seen to be damaged; None if there is none."""
    return newest_sealed(folder / "checkpoints")


def former_settings(folder: Path) -> dict[str, str]:
    """The settings of the job with which the run in this folder was started last; none if none are on record."""
    return _about(folder).settings


def last_recorded(folder: Path) -> tuple[int, frozenset[int]]:
    """The last step on the record of the run in this folder, and the workers that its last start has lost."""
    step, lost = 0, set[int]()
    with contextlib.suppress(OSError, CordeeError):  # nothing is there, or not in order
        for one in read_events(folder / "events.jsonl"):
            match one:
                case StepEvent():
                    step = max(step, one.step)
                case FailureEvent():
                    lost.add(one.worker)
                case StartEvent():
                    lost.clear()
    return step, frozenset(lost)


def end_of(folder: Path) -> EndEvent | None:
    """How the last start on record in this folder has ended; None if it has not."""
    end: EndEvent | None = None
    with contextlib.suppress(OSError, CordeeError):
        for one in read_events(folder / "events.jsonl"):
            if isinstance(one, StartEvent | EndEvent):
                end = one if isinstance(one, EndEvent) else None
    return end


class _About(msgspec.Struct):
    """What is needed here of `run.json`."""

    settings: dict[str, str] = {}
    job: dict[str, Any] | None = None


def _about(folder: Path) -> _About:
    """Nothing if the file is not there, or damaged."""
    try:
        return msgspec.json.decode((folder / "run.json").read_bytes(), type=_About)
    except (OSError, ValueError, RecursionError):
        return _About()


def _records(folder: Path, wanted: Callable[[Event], bool]) -> bool:
    """Whether such an event is on record; yes if the record cannot tell."""
    try:
        return any(map(wanted, read_events(folder / "events.jsonl")))
    except (OSError, CordeeError) as error:
        return not isinstance(error, FileNotFoundError | NotADirectoryError)


# ------------------------------------------------------------- a start that came to nothing


@contextlib.contextmanager
def tidied(folder: Path, *, ours: bool) -> Iterator[None]:
    """If what happens in here fails before the first step, a folder whose name was ours goes away again."""
    try:
        yield
    except BaseException:
        if ours and not is_begun(folder) and not _records(folder, lambda event: isinstance(event, StepEvent)):
            _remove(folder)
        raise


def _remove(folder: Path) -> None:
    """What we wrote, and the folder, unless the user put something else there, or another host of the run is there."""
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
