"""Files that are either whole or not there: flush, rename, checksums, and errors that say what the disk lacks."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from stat import S_IMODE

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from cordee.core.errors import CheckpointError, StorageError

_CHUNK = 1 << 20

_ADVICE = {
    errno.ENOSPC: "Free some space, write the run to another disk, or keep fewer checkpoints.",
    errno.EDQUOT: "Your quota on this disk is used up: free some space or write the run to another disk.",
    errno.EFBIG: "Files of this size are not allowed here (see `ulimit -f`): raise the limit or use another disk.",
    errno.EACCES: "Give this user the right to write there, or choose another folder for the run.",
    errno.EPERM: "Give this user the right to write there, or choose another folder for the run.",
    errno.EROFS: "The disk is mounted read-only: choose another folder for the run.",
    errno.EIO: "The disk reports a failure: look at the system log and write the run to another disk.",
}


@contextmanager
def storage_errors(path: Path, needed: int) -> Iterator[None]:
    """Turn what the system says about a failed write of about `needed` bytes into a `StorageError`."""
    try:
        yield
    except (OSError, SafetensorError) as problem:
        code = problem.errno if isinstance(problem, OSError) else _code_in(str(problem))
        advice = _ADVICE.get(code or 0, "Check that the folder can be written, or choose another one for the run.")
        said = os.strerror(code) if code else str(problem)
        raise StorageError(
            f"cannot write {path.absolute()}: {said} ({needed:,} bytes needed, {free_bytes(path):,} free). {advice}"
        ) from problem


def _code_in(text: str) -> int | None:
    """The errno that the safetensors library passes on in words, as `(os error 28)`."""
    found = re.search(r"os error (\d+)", text)
    return int(found.group(1)) if found else None


def free_bytes(path: Path) -> int:
    """Bytes that this user may still write on the disk that holds `path`, which need not exist yet."""
    for folder in (path, *path.absolute().parents):
        if folder.is_dir():
            return shutil.disk_usage(folder).free
    return 0


def need_space(path: Path, needed: int) -> None:
    """Refuse at once, with ENOSPC, a write that cannot fit, instead of filling the disk first."""
    if free_bytes(path) < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


PAIRS = "complex"
"""The header's entry with the names of complex tensors that are written as pairs of real numbers, (..., 2)."""


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write one safetensors file, readable by whom the umask allows; `sync` makes it last.

    Tensors on a device are copied to main memory for it, all of this file at once. The format knows complex64 alone of
    the complex types; others are written as pairs.
    """
    here = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    pairs = [name for name, one in here.items() if one.is_complex() and one.dtype != torch.complex64]
    if pairs:
        here |= {name: torch.view_as_real(here[name]) for name in pairs}
        metadata = {**(metadata or {}), PAIRS: json.dumps(pairs)}
    try:
        path.touch()
        mode = S_IMODE(path.stat().st_mode)  # the library makes its files anew, for their owner alone
        save_file(here, str(path), metadata=dict(metadata or {}))
        path.chmod(mode)
    except (TypeError, KeyError, ValueError) as problem:  # how the library says that it has no word for a dtype
        raise CheckpointError(
            f"cannot write {path}: safetensors does not take one of {sorted({str(t.dtype) for t in tensors.values()})} "
            f"({problem}). Keep such a tensor out of the state, or store it in another dtype."
        ) from problem


def read_tensors(path: Path, *, only: str = "") -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """Header and tensors of a safetensors file, or those whose names begin so; `ValueError` or `OSError` if damaged."""
    try:
        with safe_open(str(path), framework="pt") as file:
            header = dict(file.metadata() or {})
            names = [name for name in file.keys() if name.startswith(only)]  # noqa: SIM118 (not a dict)
            tensors = {name: file.get_tensor(name) for name in names}
        for name in json.loads(header.get(PAIRS, "[]")):
            if name in tensors:
                # Copied: a file's memory may be aligned to 8 bytes only, where copying complex128 ends in SIGSEGV.
                tensors[name] = torch.view_as_complex(tensors[name].clone())
    except (SafetensorError, RuntimeError, TypeError) as problem:
        raise ValueError(str(problem)) from problem
    return header, tensors


def replace_file(path: Path, needed: int, write: Callable[[Path], None]) -> None:
    """Let `write` fill a hidden neighbour of `path`, then put it in its place in one go."""
    with storage_errors(path, needed):
        path.parent.mkdir(parents=True, exist_ok=True)
        need_space(path.parent, needed)
        hidden = path.parent / f".{path.name}.{secrets.token_hex(4)}"
        try:
            write(hidden)
            sync(hidden)
            hidden.replace(path)
        except BaseException:
            hidden.unlink(missing_ok=True)
            raise
        sync(path.parent)
