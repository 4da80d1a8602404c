"""Where checkpoints lie: each in a folder that has its name only when it is whole, and is hidden until then."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cordee.core.locks import lock
from cordee.state.files import sync

STEP = re.compile(r"step-(\d{8,})")
_HIDDEN = re.compile(r"\.(step-\d{8,})\.(old|(?:new|gone)-.*)")


def folder_name(step: int) -> str:
    """What the checkpoint of a step is called."""
    return f"step-{step:08d}"


def unfinished(final: Path, token: str) -> Path:
    """Where the owners that share `token` write the checkpoint `final`: no reader takes this folder for one."""
    return final.with_name(f".{final.name}.new-{token}")


@contextmanager
def _locked(folder: Path) -> Iterator[bool | None]:
    """Lock a folder; gives what `lock` says. The system releases it when the process ends, however it ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield lock(handle)
    finally:
        os.close(handle)


@contextmanager
def writing(final: Path, token: str) -> Iterator[Path]:
    """The unfinished folder of `final`, put into its place at the end of the block, and removed if that fails."""
    folder = unfinished(final, token or secrets.token_hex(4))
    folder.mkdir()
    with _locked(folder):
        try:
            yield folder
            put_in_place(folder, final)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def put_in_place(folder: Path, final: Path) -> None:
    """Rename a whole checkpoint to its name; one that was written at the same step before steps aside."""
    old = final.with_name(f".{final.name}.old")
    if final.exists():
        final.rename(old)
    try:
        folder.rename(final)
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
    gone = path.with_name(f".{name}.gone-{secrets.token_hex(4)}")
    path.rename(gone)
    shutil.rmtree(gone)


def sweep(folder: Path) -> None:
    """Remove what dead writers left behind, and give back its name to a checkpoint that was just being replaced."""
    for path in list(folder.iterdir()) if folder.is_dir() else []:
        found = _HIDDEN.fullmatch(path.name)
        if not found:
            continue
        with suppress(FileNotFoundError), _locked(path) as mine:
            if not mine:  # its writer lives; or there are no locks here, and leftovers only cost space
                continue
            final = folder / found.group(1)
            if found.group(2) == "old" and not final.exists():
                path.rename(final)
            else:
                shutil.rmtree(path, ignore_errors=True)
