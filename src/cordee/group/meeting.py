"""Where the processes of one host meet under another launcher: a private file that rank 0 writes and the others read.

The file is named after the run: what the launcher's variables say of it (an address, a job's number), or, where they
say nothing, the working folder. Only this user can read its folder. It holds rank 0's port and a token.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import time
from pathlib import Path

from cordee.core.errors import RendezvousError, SecurityError, StorageError
from cordee.core.locks import take_lock
from cordee.core.world import World
from cordee.group.wire import Address

HELD_S = 2.0
"""How long a former rank 0 of the same run may take to end."""


class Meeting:
    """One run's meeting; rank 0 calls `open` and `close`, the others `find`."""

    def __init__(self, world: World) -> None:
        """Nothing is written or read yet."""
        self._named = world.run or f"the folder {Path.cwd()}"
        about = f"{world.source} {world.size} {self._named}"
        self._path = private_folder("TMPDIR") / f"meeting-{hashlib.sha256(about.encode()).hexdigest()[:24]}.json"
        self._handle = -1

    def open(self, address: Address) -> None:
        """Write rank 0's address; `RendezvousError` if another living process is rank 0 at this meeting."""
        deadline = time.monotonic() + HELD_S
        while (handle := take_lock(self._path)) is None:
            if time.monotonic() > deadline:
                raise RendezvousError(
                    f"another process of yours waits as rank 0 of the same run, named by {self._named}: end it, or "
                    "give each run its own MASTER_ADDR and MASTER_PORT"
                )
        self._handle = handle
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, json.dumps({"port": address.port, "token": address.token}).encode(), 0)

    def find(self) -> Address:
        """Rank 0's address; `OSError` or `ValueError` if it is not there yet."""
        found = json.loads(self._path.read_text())
        return Address("127.0.0.1", int(found["port"]), str(found["token"]))

    def close(self) -> None:
        """All have met: the name is free for the next run."""
        if self._handle >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = -1


def private_folder(variable: str) -> Path:
    """A folder that only this user can use, in the one that a variable names, or among temporary files.

    No process may be served by what another user has put there.
    """
    try:
        folder = Path(os.environ.get(variable) or tempfile.gettempdir()) / f"cordee-{os.getuid()}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise StorageError(f"no folder for this user: {error}. Set {variable} to one that you can write") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SecurityError(f"{folder} is not private to this user: remove it, or set {variable} to another folder")
    return folder
