"""The twins of this machine: one folder per twin, written before anything is made and removed after everything.

However the process that owns a twin ends, the folder says to the next command what to remove. A folder appears and
vanishes as a whole, by renaming: what lies under a name that ends with `~` is rubbish.
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

    def write(self, folder: Path | None = None) -> None:
        """Write the record as it is now."""
        content = {"hosts": str(self.cluster), "stays": self.stays, "namespaces": self.namespaces}
        write_whole((folder or self.folder) / _RECORD, json.dumps(content))


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
        with contextlib.suppress(FileExistsError):
            self.folder.mkdir(mode=0o700, parents=True)
        # Not through a link, which any user may put where temporary files are: what lies here is removed later.
        status = self.folder.lstat()
        private = status.st_uid == os.geteuid() and status.st_mode & 0o777 == 0o700
        if not stat.S_ISDIR(status.st_mode) or not private:
            what = "a folder of this user's own that is private to this user (mode 700), not a link"
            raise CordeeError(f"{self.folder} is not {what}: remove it, or move it away")
        with (self.folder / _LOCK).open("w") as lock:
            os.set_inheritable(lock.fileno(), True)  # a command that we started holds it too, should we be killed
            fcntl.flock(lock, fcntl.LOCK_EX)
            for rubbish in self.folder.glob("*~"):
                shutil.rmtree(rubbish)
            yield

    def add(self, name: str | None, cluster: Cluster, *, stays: bool = False, namespaces: bool) -> Entry:
        """Record a new twin; this process owns it unless it `stays`."""
        if name is None:
            name = f"t{secrets.token_hex(4)}"
        if not _NAME.fullmatch(name):
            raise UsageError(f"twin {name!r}: expected up to 12 small letters and digits, a letter first")
        folder = self.folder / name
        if os.path.lexists(folder):
            raise UsageError(f"there is a twin {name} already ({folder}): cordee twin down {name}, or another --name")
        entry = Entry(name, cluster, stays, namespaces, folder)
        unfinished = self._rubbish(name)
        unfinished.mkdir(mode=0o700)
        entry.write(unfinished)
        unfinished.rename(folder)
        if not stays and (lock := take_lock(folder / _OWNER)) is not None:
            self._owned[name] = lock
        return entry

    def disown(self, entry: Entry) -> None:
        """This process does not own it any more."""
        if entry.name in self._owned:
            os.close(self._owned.pop(entry.name))

    def entries(self) -> list[Entry]:
        """All twins, by name; `CordeeError` for a record that cannot be read: it is kept, the twin may be up."""
        folders = [path for path in sorted(self.folder.glob("*")) if _NAME.fullmatch(path.name)]
        return [_read(path) for path in folders if (path / _RECORD).exists()]

    def find(self, name: str | None) -> Entry:
        """The twin of this name; without a name, the only twin."""
        twins = self.entries()
        chosen = [one for one in twins if name in (None, one.name)]
        if len(chosen) == 1:
            return chosen[0]
        names = ", ".join(one.name for one in twins)
        if not twins:
            raise UsageError("there is no twin here: make one with `cordee twin up --hosts ...`")
        if name is None:
            raise UsageError(f"there are several twins: choose one with --name. There are {names}")
        raise UsageError(f"there is no twin {name!r}; there is {names}")

    def remove(self, entry: Entry) -> None:
        """Everything of it is gone."""
        if entry.folder.exists():
            shutil.rmtree(entry.folder.rename(self._rubbish(entry.name)))
        self.disown(entry)

    def _rubbish(self, name: str) -> Path:
        """Where the folder of a twin lies that is not finished yet, or not needed any more."""
        return self.folder / f"{name}~"


def _read(folder: Path) -> Entry:
    record = folder / _RECORD
    try:
        read = json.loads(record.read_text())
        return Entry(folder.name, Cluster.parse(read["hosts"]), read["stays"], read["namespaces"], folder)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, UsageError) as error:
        raise CordeeError(
            f"twin {folder.name}: {record} is not a record of a twin ({error}). If another version of Cordée made it, "
            f"take it down with that version. Otherwise end its processes by hand (`ip netns list` shows "
            f"cordee-{folder.name}...) and remove the folder {folder}"
        ) from error
