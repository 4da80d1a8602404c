"""Which twins there are on this machine: a folder each, written before anything is made and removed after everything.

Whatever ends a twin's owner, its folder tells the next command what there is to clear away.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cordee.core.errors import CordeeError, UsageError
from cordee.twin.cluster import Cluster

_NAME = re.compile(r"[a-z][a-z0-9]{0,11}")


@dataclass(frozen=True)
class Owner:
    """The process with which a twin ends, told from a later one of the same number by the time of its start."""

    pid: int
    started: int

    @classmethod
    def me(cls) -> Owner:
        """This process."""
        return cls(os.getpid(), _started(os.getpid()) or 0)

    @property
    def alive(self) -> bool:
        """Whether it is still there."""
        return _started(self.pid) == self.started


@dataclass(frozen=True)
class Entry:
    """What is on record of a twin."""

    name: str
    cluster: Cluster
    owner: Owner | None
    """None: it stays until somebody takes it down."""
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


class Registry:
    """The folder of all twins of this user."""

    def __init__(self, folder: Path | None = None) -> None:
        """In /run for root, who alone makes namespaces; otherwise beside other temporary files."""
        other = Path(tempfile.gettempdir()) / f"cordee-twin-{os.getuid()}"
        self.folder = folder or (Path("/run/cordee-twin") if os.geteuid() == 0 else other)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among the commands that make or remove twins."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.folder.stat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise CordeeError(f"{self.folder} is not private to this user: remove it")
        with (self.folder / "lock").open("w") as lock:
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
            raise UsageError(f"there is a twin {name} already: cordee twin down {name}, or another --name") from None
        entry = Entry(name, cluster, owner, namespaces, folder)
        self.keep(entry)
        return entry

    def keep(self, entry: Entry) -> None:
        """Write it down as it is now."""
        content = {
            "hosts": entry.cluster.to_dicts(),
            "owner": [entry.owner.pid, entry.owner.started] if entry.owner else None,
            "namespaces": entry.namespaces,
        }
        new = entry.folder / "twin.json.new"
        new.write_text(json.dumps(content))
        new.replace(entry.folder / "twin.json")

    def entries(self) -> list[Entry]:
        """All that are on record."""
        if not self.folder.exists():
            return []
        return [entry for folder in sorted(self.folder.iterdir()) if (entry := _read(folder)) is not None]

    def find(self, name: str | None) -> Entry:
        """The twin of this name; without one, the only one."""
        entries = self.entries()
        chosen = [entry for entry in entries if name in (None, entry.name)]
        if len(chosen) == 1:
            return chosen[0]
        names = ", ".join(entry.name for entry in entries)
        if not entries:
            raise UsageError("there is no twin here: make one with `cordee twin up --hosts ...`")
        if name is None:
            raise UsageError(f"there are several twins: say which with --name. There are {names}")
        raise UsageError(f"there is no twin {name!r}; there is {names}")

    def remove(self, entry: Entry) -> None:
        """Everything of it is gone."""
        shutil.rmtree(entry.folder, ignore_errors=True)


def _read(folder: Path) -> Entry | None:
    try:
        content: dict[str, Any] = json.loads((folder / "twin.json").read_text())
    except NotADirectoryError:
        return None
    except (OSError, ValueError):  # killed between its folder and its file: nothing was made yet
        return Entry(folder.name, Cluster(()), Owner(0, -1), False, folder)
    owner = Owner(*content["owner"]) if content["owner"] else None
    return Entry(folder.name, Cluster.from_dicts(content["hosts"]), owner, bool(content["namespaces"]), folder)


def _started(pid: int) -> int | None:
    """When a process was started, in ticks since the machine was; None if there is none, or only its exit code."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[19]) if fields[0] not in "ZX" else None
    except (OSError, IndexError, ValueError):
        return None
