"""The twins of this machine: one folder per twin, written before anything is made and removed after everything.

However the process that owns a twin ends, the folder says to the next command what to remove.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cordee.core.damage import write_whole
from cordee.core.errors import CordeeError, UsageError
from cordee.core.locks import is_locked, take_lock
from cordee.twin.cluster import Cluster

_NAME = re.compile(r"[a-z][a-z0-9]{0,11}")
_RECORD, _LOCK, _OWNER = "twin.json", ".lock", "owner.lock"


@dataclass(frozen=True)
class Entry:
    """The record of a twin."""

    name: str
    cluster: Cluster
    stays: bool
    """Until `cordee twin down`; otherwise it ends with the process that owns it."""
    namespaces: bool
    """Whether its hosts are namespaces; otherwise they are mere processes."""
    folder: Path

    @property
    def token_file(self) -> Path:
        """The secret that the hosts of this twin share."""
        return self.folder / "token"

    @property
    def hosts_file(self) -> Path:
        """What its hosts see as /etc/hosts."""
        return self.folder / "hosts"

    @property
    def abandoned(self) -> bool:
        """Whether the process that owned it has ended."""
        return not self.stays and not is_locked(self.folder / _OWNER)


class DamagedRecord(CordeeError):
    """A record that cannot be read; it is kept, for the twin itself may be up."""

    def __init__(self, folder: Path, why: str) -> None:
        """The twin of this folder, and what is wrong with its record."""
        self.name = folder.name
        super().__init__(
            f"twin {self.name}: {folder / _RECORD} {why}. If another version of Cordée made this twin, take it down "
            f"with that version. Otherwise end its processes by hand (`ip netns list` shows cordee-{self.name}...) "
            f"and remove the folder {folder}"
        )


class Registry:
    """The folder of all twins of this user."""

    def __init__(self, folder: Path | None = None) -> None:
        """In /run for root, the only user that makes namespaces; otherwise beside other temporary files."""
        other = Path(tempfile.gettempdir()) / f"cordee-twin-{os.getuid()}"
        self.folder = folder or (Path("/run/cordee-twin") if os.geteuid() == 0 else other)
        self._owned: dict[str, int] = {}

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among the commands that make, change or remove twins; not to be nested."""
        try:
            self.folder.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            pass
        except OSError as error:
            raise CordeeError(f"the folder of twins {self.folder} cannot be made: {error.strerror}") from error
        # Not through a link, which any user may put where temporary files are: what lies here is removed later.
        status = self.folder.lstat()
        private = status.st_uid == os.geteuid() and status.st_mode & 0o777 == 0o700
        if not stat.S_ISDIR(status.st_mode) or not private:
            what = "a folder of this user's own that is private to this user (mode 700), not a link"
            raise CordeeError(f"{self.folder} is not {what}: remove it, or move it away")
        with (self.folder / _LOCK).open("w") as lock:
            os.set_inheritable(lock.fileno(), True)  # a command that we started holds it too, should we be killed
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def add(self, name: str | None, cluster: Cluster, *, stays: bool = False, namespaces: bool) -> Entry:
        """Record a new twin; this process owns it unless it `stays`."""
        if name is None:
            name = f"t{secrets.token_hex(4)}"
        if not _NAME.fullmatch(name):
            raise UsageError(f"twin {name!r}: expected up to 12 small letters and digits, a letter first")
        folder = self.folder / name
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            if folder.is_symlink() or not folder.is_dir():
                raise UsageError(f"{folder} is no twin and in the way of one: remove it, or another --name") from None
            raise UsageError(f"there is a twin {name} already: cordee twin down {name}, or another --name") from None
        entry = Entry(name, cluster, stays, namespaces, folder)
        if not stays:
            self.own(entry)
        self.write(entry)
        return entry

    def write(self, entry: Entry) -> None:
        """Write the record as it is now."""
        content = {"hosts": str(entry.cluster), "stays": entry.stays, "namespaces": entry.namespaces}
        write_whole(entry.folder / _RECORD, json.dumps(content))

    def own(self, entry: Entry) -> None:
        """From now on this process owns it, until it ends."""
        if entry.name not in self._owned and (lock := take_lock(entry.folder / _OWNER)) is not None:
            self._owned[entry.name] = lock

    def disown(self, entry: Entry) -> None:
        """This process does not own it any more."""
        if entry.name in self._owned:
            os.close(self._owned.pop(entry.name))

    def entries(self) -> list[Entry]:
        """All twins whose record can be read."""
        return [one for one in self._read() if isinstance(one, Entry)]

    def damaged(self) -> list[DamagedRecord]:
        """An error for each twin whose record cannot be read."""
        return [one for one in self._read() if isinstance(one, DamagedRecord)]

    def find(self, name: str | None) -> Entry:
        """The twin of this name; without a name, the only twin."""
        twins = self._read()
        chosen = [one for one in twins if name in (None, one.name)]
        if len(chosen) == 1:
            if isinstance(chosen[0], DamagedRecord):
                raise chosen[0]
            return chosen[0]
        names = ", ".join(one.name for one in twins)
        if not twins:
            raise UsageError("there is no twin here: make one with `cordee twin up --hosts ...`")
        if name is None:
            raise UsageError(f"there are several twins: choose one with --name. There are {names}")
        raise UsageError(f"there is no twin {name!r}; there is {names}")

    def remove(self, entry: Entry) -> None:
        """Everything of it is gone. The record goes last: without it, no later command would remove the rest."""
        record = entry.folder / _RECORD
        whole = record.exists()
        try:
            for path in set(entry.folder.glob("*")) - {record}:
                if path.is_dir() and not path.is_symlink() and whole:
                    shutil.rmtree(path)
                elif whole or _is_unfinished(path):
                    path.unlink(missing_ok=True)
            record.unlink(missing_ok=True)
            if entry.folder.exists():
                entry.folder.rmdir()
        except OSError as error:
            raise CordeeError(f"twin {entry.name}: {error.filename} cannot be removed: {error.strerror}") from error
        self.disown(entry)

    def _read(self) -> list[Entry | DamagedRecord]:
        folders = sorted(path for path in self.folder.glob("*") if path.is_dir() and not path.is_symlink())
        return [_read(path) for path in folders if _NAME.fullmatch(path.name)]


def _read(folder: Path) -> Entry | DamagedRecord:
    try:
        match json.loads((folder / _RECORD).read_text()):
            case {"hosts": str(hosts), "stays": bool(stays), "namespaces": bool(namespaces), **rest} if not rest:
                return Entry(folder.name, Cluster.parse(hosts), stays, namespaces, folder)
        return DamagedRecord(folder, "is not a record of a twin (expected hosts, stays and namespaces)")
    except FileNotFoundError:
        strange = sorted(path.name for path in folder.glob("*") if not _is_unfinished(path))
        if strange:
            return DamagedRecord(folder, f"is not there, but {', '.join(strange[:3])} is")
        # Killed between its folder and its file: nothing was made yet.
        return Entry(folder.name, Cluster(()), False, False, folder)
    except OSError as error:
        return DamagedRecord(folder, f"cannot be read: {error}")
    except (ValueError, RecursionError, UsageError) as error:
        return DamagedRecord(folder, f"is not a record of a twin ({error})")


def _is_unfinished(file: Path) -> bool:
    """Whether a process that was killed while it made the record left this file."""
    return file.is_file() and (file.name == _OWNER or file.name.startswith(f".{_RECORD}."))
