"""Which twins there are on this machine: a folder each, written before anything is made and removed after everything.

However a twin's owner ends, the folder tells the next command what to remove.
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

from cordee.core.errors import CordeeError, UsageError
from cordee.twin.cluster import Cluster

_NAME = re.compile(r"[a-z][a-z0-9]{0,11}")
_RECORD, _LOCK = "twin.json", ".lock"
_UNFINISHED = re.compile(rf"{re.escape(_RECORD)}\.(\d+\.)?new")
"""A record that was being written."""


@dataclass(frozen=True)
class Owner:
    """The process with which a twin ends, told from a later one of the same number by the time of its start."""

    pid: int
    started: int
    space: str = ""
    """The PID namespace in which it has this number; empty in records that do not say it."""

    @classmethod
    def me(cls) -> Owner:
        """This process."""
        return cls(os.getpid(), _started(os.getpid()) or 0, _pid_space())

    @property
    def alive(self) -> bool:
        """Whether it is still there; one in another PID namespace (a container's) is not seen, and counts as there."""
        return (self.space not in ("", _pid_space())) or _started(self.pid) == self.started


@dataclass(frozen=True)
class Entry:
    """What is on record of a twin."""

    name: str
    cluster: Cluster
    owner: Owner | None
    """None: it stays until `cordee twin down`."""
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


@dataclass(frozen=True)
class Damaged:
    """A record that says nothing to us; it is kept, for the twin itself may be up."""

    folder: Path
    why: str

    @property
    def name(self) -> str:
        """What the twin is called."""
        return self.folder.name

    def __str__(self) -> str:
        """What is wrong, and what to do."""
        return (
            f"twin {self.name}: {self.folder / _RECORD} {self.why}. If another version of Cordée made this twin, take "
            f"it down with that one. Otherwise end what is there by hand (`ip netns list` shows cordee-{self.name}...) "
            f"and remove the folder {self.folder}"
        )


class Registry:
    """The folder of all twins of this user."""

    def __init__(self, folder: Path | None = None) -> None:
        """In /run for root, the only user that makes namespaces; otherwise beside other temporary files."""
        other = Path(tempfile.gettempdir()) / f"cordee-twin-{os.getuid()}"
        self.folder = folder or (Path("/run/cordee-twin") if os.geteuid() == 0 else other)

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
        found = self.folder.lstat()
        private = found.st_uid == os.geteuid() and found.st_mode & 0o777 == 0o700
        if not stat.S_ISDIR(found.st_mode) or not private:
            what = "a folder of this user's own that is private to this user (mode 700), not a link"
            raise CordeeError(f"{self.folder} is not {what}: remove it, or move it away")
        with (self.folder / _LOCK).open("w") as lock:
            os.set_inheritable(lock.fileno(), True)  # a command that we started holds it too, should we be killed
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def add(self, name: str | None, cluster: Cluster, owner: Owner | None, *, namespaces: bool) -> Entry:
        """Put a new twin on record."""
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
        entry = Entry(name, cluster, owner, namespaces, folder)
        self.keep(entry)
        return entry

    def keep(self, entry: Entry) -> None:
        """Write it down as it is now."""
        owner = entry.owner
        content = {
            "hosts": entry.cluster.to_dicts(),
            "owner": [owner.pid, owner.started, owner.space] if owner else None,
            "namespaces": entry.namespaces,
        }
        new = entry.folder / f"{_RECORD}.{os.getpid()}.new"
        new.write_text(json.dumps(content))
        new.replace(entry.folder / _RECORD)

    def entries(self) -> list[Entry]:
        """All that are on record, less those whose record cannot be read."""
        return [one for one in self._read() if isinstance(one, Entry)]

    def damaged(self) -> list[Damaged]:
        """Those whose record cannot be read."""
        return [one for one in self._read() if isinstance(one, Damaged)]

    def find(self, name: str | None) -> Entry:
        """The twin of this name; without one, the only one."""
        everything = self._read()
        chosen = [one for one in everything if name in (None, one.name)]
        if len(chosen) == 1:
            if isinstance(chosen[0], Damaged):
                raise CordeeError(str(chosen[0]))
            return chosen[0]
        names = ", ".join(one.name for one in everything)
        if not everything:
            raise UsageError("there is no twin here: make one with `cordee twin up --hosts ...`")
        if name is None:
            raise UsageError(f"there are several twins: say which with --name. There are {names}")
        raise UsageError(f"there is no twin {name!r}; there is {names}")

    def remove(self, entry: Entry) -> None:
        """Everything of it is gone. The record goes last: without it, no later command would remove the rest."""
        record = entry.folder / _RECORD
        whole = record.exists()
        try:
            for one in set(entry.folder.glob("*")) - {record}:
                if one.is_dir() and not one.is_symlink() and whole:
                    shutil.rmtree(one)
                elif whole or _unfinished(one):
                    one.unlink(missing_ok=True)
            record.unlink(missing_ok=True)
            if entry.folder.exists():
                entry.folder.rmdir()
        except OSError as error:
            raise CordeeError(f"twin {entry.name}: {error.filename} cannot be removed: {error.strerror}") from error

    def _read(self) -> list[Entry | Damaged]:
        folders = sorted(one for one in self.folder.glob("*") if one.is_dir() and not one.is_symlink())
        return [_read(one) for one in folders if _NAME.fullmatch(one.name)]


def _read(folder: Path) -> Entry | Damaged:
    try:
        content = json.loads((folder / _RECORD).read_text())
        if not isinstance(content, dict) or set(content) != {"hosts", "owner", "namespaces"}:
            raise ValueError("expected hosts, owner and namespaces")
        owner, namespaces = content["owner"], content["namespaces"]
        if not isinstance(namespaces, bool):
            raise ValueError("namespaces is neither true nor false")
        if owner is not None:
            if not isinstance(owner, list) or [type(one) for one in owner] not in ([int, int], [int, int, str]):
                raise ValueError("owner is no process")
            owner = Owner(*owner)
        return Entry(folder.name, Cluster.from_dicts(content["hosts"]), owner, namespaces, folder)
    except FileNotFoundError:
        strange = sorted(one.name for one in folder.glob("*") if not _unfinished(one))
        if strange:
            return Damaged(folder, f"is not there, but {', '.join(strange[:3])} is")
        # Killed between its folder and its file: nothing was made yet.
        return Entry(folder.name, Cluster(()), Owner(0, -1), False, folder)
    except OSError as error:
        return Damaged(folder, f"cannot be read: {error}")
    except (ValueError, RecursionError) as error:
        return Damaged(folder, f"is not a record of a twin ({error})")


def _unfinished(file: Path) -> bool:
    return bool(_UNFINISHED.fullmatch(file.name)) and file.is_file()


def _started(pid: int) -> int | None:
    """When a process was started, in ticks since the machine was; None if there is none, or only its exit code."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[19]) if fields[0] not in "ZX" else None
    except (OSError, IndexError, ValueError):
        return None


def _pid_space() -> str:
    """In which a number means this process and no other."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
