"""Files that are either whole or not there: flush, rename, checksums, and errors that say what the disk lacks."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from cordee.core.errors import CheckpointError, StorageError

_CHUNK = 1 << 20
_PIECE = 32 << 20
"""Bytes of a tensor that are written at once."""

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
    except OSError as problem:
        code = problem.errno or 0
        advice = _ADVICE.get(code, "Check that the folder can be written, or choose another one for the run.")
        said = os.strerror(code) if code else str(problem)
        raise StorageError(
            f"cannot write {path.absolute()}: {said} ({needed:,} bytes needed, {free_bytes(path):,} free). {advice}"
        ) from problem


def free_bytes(path: Path) -> int:
    """Bytes that this user may still write on the disk that holds `path`, which need not exist yet."""
    return shutil.disk_usage(next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())).free


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


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """Write one safetensors file, and return its SHA-256; `sync` makes it last.

    Piece by piece, though the format's own library would have the whole file in memory first: a model on a GPU must not
    need as much main memory to be written. The format knows complex64 alone of the complex types; others are written as
    pairs.
    """
    here = {name: tensor.detach() for name, tensor in tensors.items()}
    pairs = [name for name, one in here.items() if one.is_complex() and not _code(one.dtype)]
    if pairs:
        here |= {name: torch.view_as_real(here[name].resolve_conj()) for name in pairs}
        metadata = {**(metadata or {}), PAIRS: json.dumps(pairs)}
    if strange := sorted({str(one.dtype) for one in here.values() if not _code(one.dtype)}):
        raise CheckpointError(
            f"cannot write {path}: safetensors has no word for {', '.join(strange)}. Keep such a tensor out of the "
            "state, or store it in another dtype."
        )
    names = sorted(here, key=lambda name: (-here[name].element_size(), name))  # so that all are aligned
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        start, end = end, end + here[name].nbytes
        shape = list(here[name].shape)
        header[name] = {"dtype": _code(here[name].dtype), "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("wb", buffering=0) as file, ThreadPoolExecutor(1) as other:
        head = memoryview(len(text).to_bytes(8, "little") + text)
        for rest in chain([head], *(pieces(here[name]) for name in names)):
            hashed = other.submit(digest.update, rest)
            while rest:
                rest = rest[file.write(rest) :]
            hashed.result()
    return digest.hexdigest()


@cache
def _code(dtype: torch.dtype) -> str | None:
    """How safetensors calls a number format, as its own library writes it; None if it has no word for it."""
    try:
        return str(json.loads(save({"x": torch.empty(0, dtype=dtype)})[8:])["x"]["dtype"])
    except (KeyError, RuntimeError, SafetensorError):
        return None


def pieces(tensor: torch.Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor, some at a time; those of one on a device come through the same little memory."""
    raw = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    room = None if raw.is_cpu else torch.empty(min(_PIECE, raw.numel()), dtype=torch.uint8)
    for start in range(0, raw.numel(), _PIECE):
        piece = raw[start : start + _PIECE]
        yield (piece if room is None else room[: len(piece)].copy_(piece)).numpy().data


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


def replace_file(path: Path, needed: int, write: Callable[[Path], object]) -> None:
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
