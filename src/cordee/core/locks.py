"""Locks of files, which the kernel releases when their process ends, however it ends."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

UNLOCKABLE = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL, errno.EBADF)
"""What file systems answer that know no locks."""


def lock(handle: int, *, shared: bool = False) -> bool | None:
    """Lock an open file or folder until it is closed. False: another process has it. None: there are no locks here."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in UNLOCKABLE:
            return None
        raise
    return True


def leads_to(path: Path, handle: int) -> bool:
    """Whether `path` is the open file, and not another one that has taken its place since."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except OSError:
        return False


def take_lock(path: Path) -> int | None:
    """The lock at `path` as a descriptor, held until that is closed; None if another process has it, or removed it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    for wait_s in (0.05, 0.0):  # tried twice: `is_locked` takes it for a moment
        if lock(handle) is not False and leads_to(path, handle):
            return handle
        time.sleep(wait_s)
    os.close(handle)
    return None


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock at `path`."""
    if not path.exists():
        return False
    handle = take_lock(path)
    if handle is not None:
        os.close(handle)
    return handle is None
