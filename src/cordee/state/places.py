"""Where checkpoints lie: each in a folder that has its name only when it is whole, and is hidden until then."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
from pathlib import Path

from cordee.state.files import sync

STEP = re.compile(r"step-(\d{8,})")
_OLD = re.compile(r"\.(step-\d{8,})\.old")
_HIDDEN = re.compile(r"\.step-\d{8,}\.(?:new|gone)-.*")


def folder_name(step: int) -> str:
    """What the checkpoint of a step is called."""
    return f"step-{step:08d}"


def hidden_name(final: Path, purpose: str, token: str) -> Path:
    """A folder beside `final` that no reader takes for a checkpoint."""
    return final.parent / f".{final.name}.{purpose}-{token}"


def hidden(final: Path, purpose: str, token: str = "") -> Path:
    """Make such a folder, by default one that none has had before."""
    path = hidden_name(final, purpose, token or secrets.token_hex(4))
    path.mkdir()
    return path


def put_in_place(hidden: Path, final: Path) -> None:
    """Rename a whole checkpoint to its name; one that was written at the same step before steps aside."""
    old = final.parent / f".{final.name}.old"
    if final.exists():
        final.rename(old)
    try:
        hidden.rename(final)
    except OSError:
        if old.exists():
            old.rename(final)
        raise
    sync(final.parent)
    if old.exists():
        discard(old)


def discard(path: Path) -> None:
    """Delete a checkpoint so that no half of it is ever taken for a whole one."""
    name = path.name.lstrip(".").removesuffix(".old")
    gone = hidden(path.parent / name, "gone")
    path.rename(gone / name)
    shutil.rmtree(gone)


def lock(folder: Path) -> int | None:
    """Hold a folder as its living writer: the system lets go when the process dies, however it dies."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        os.close(handle)
        if problem.errno in (errno.ENOLCK, errno.ENOTSUP, errno.EBADF, errno.ENOSYS):
            return None  # a file system without locks: leftovers stay, which only costs space
        raise
    return handle


def sweep(folder: Path) -> None:
    """Remove what dead writers left behind, and give back its name to a checkpoint that was just being replaced."""
    if not folder.is_dir():
        return
    for path in list(folder.iterdir()):
        replaced = _OLD.fullmatch(path.name)
        if not replaced and not _HIDDEN.fullmatch(path.name):
            continue
        try:
            handle = lock(path)
        except OSError:
            continue  # its writer lives, or it is gone by now
        if handle is None:
            continue
        try:
            if replaced and not (folder / replaced.group(1)).exists():
                path.rename(folder / replaced.group(1))
            else:
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(handle)
