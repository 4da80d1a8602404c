"""Locks of a twin's files; the kernel releases them when their process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path


def take_lock(path: Path) -> int | None:
    """The lock at `path` as a descriptor, held until that is closed; None if another process has it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    for wait_s in (0.05, 0.0):  # tried twice: `is_locked` takes it for a moment
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            time.sleep(wait_s)
    os.close(lock)
    return None


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock at `path`."""
    if not path.exists():
        return False
    lock = take_lock(path)
    if lock is not None:
        os.close(lock)
    return lock is None
