"""One checkpoint folder: tensors in safetensors files, everything else in `checkpoint.json`.

The index gives every tensor a list of slices (file, key, offset, shape), so that a plan which holds a tensor in slices
writes them by all their owners at once, and any other plan can put them together. A checkpoint stands when the first
owner has written the index. Where a worker holds whole tensors, it is the only owner.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cordee.core.damage import DAMAGE, named
from cordee.core.errors import CheckpointError
from cordee.state.files import read_tensors, sha256, sync, write_tensors
from cordee.state.naming import Slice, Snapshot
from cordee.state.plain import decode

FORMAT = 1
INDEX = "checkpoint.json"


@dataclass(frozen=True)
class Header:
    """What a checkpoint says about itself before any tensor is read."""

    step: int
    metrics: dict[str, float]
    body: dict[str, Any]


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of payload that these tensors take in a file."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def shards(tensors: Mapping[str, torch.Tensor], limit: int) -> list[list[str]]:
    """Names packed in order into files of at most `limit` bytes; a larger tensor gets a file of its own."""
    files: list[list[str]] = []
    room = 0
    for name, tensor in tensors.items():
        size = tensor_bytes([tensor])
        if not files or size > room:
            files.append([])
            room = limit
        files[-1].append(name)
        room -= size
    return files


def write_folder(
    folder: Path,
    snapshot: Snapshot,
    *,
    step: int,
    metrics: Mapping[str, float],
    shard_bytes: int,
    on_read: Callable[[], None] = lambda: None,
    others: Callable[[], Iterable[Part]] = lambda: (),
) -> int:
    """Write all files of one checkpoint into an existing folder, flush them, and return their size.

    `on_read` is called when no tensor of the snapshot is needed any more: from then on a live one may change. `others`
    waits for what other owners have written into the same folder, and gives it.
    """
    part = write_part(folder, snapshot, shard_bytes=shard_bytes, on_read=on_read)
    for more in others():
        part = part.joined(more)
    body = {
        "format": FORMAT,
        "step": step,
        "time": time.time(),
        # A NaN has no place in JSON, and no use as "best".
        "metrics": {name: float(value) for name, value in metrics.items() if abs(value) < float("inf")},
        "meta": snapshot.meta,
        "tensors": part.tensors,
        "files": part.files,
    }
    size = _write_sealed(folder / INDEX, body)
    sync(folder)
    return size + part.bytes


@dataclass(frozen=True)
class Part:
    """What one owner wrote of a checkpoint: entries of its index."""

    tensors: dict[str, Any]
    """By name: number format, shape of the whole, and slices (file, key, offset, shape)."""
    files: dict[str, Any]
    """By name: size and checksum."""

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(int(entry["bytes"]) for entry in self.files.values())

    def joined(self, other: Part) -> Part:
        """Both parts: of a tensor that both hold slices of, all slices."""
        tensors = dict(self.tensors)
        for name, entry in other.tensors.items():
            slices = [*tensors[name]["slices"], *entry["slices"]] if name in tensors else entry["slices"]
            tensors[name] = {**entry, "slices": slices}
        return Part(tensors, {**self.files, **other.files})


def write_part(
    folder: Path, snapshot: Snapshot, *, shard_bytes: int, on_read: Callable[[], None] = lambda: None, prefix: str = ""
) -> Part:
    """Write the tensors of one owner, and flush them; `prefix` tells its files from those of others."""
    packed = shards(snapshot.tensors, shard_bytes)
    names_of = {
        f"{prefix}tensors-{number:05d}-of-{len(packed):05d}.safetensors": names
        for number, names in enumerate(packed, 1)
    }
    sums = {
        file: write_tensors(folder / file, {name: snapshot.tensors[name] for name in names})
        for file, names in names_of.items()
    }
    on_read()
    tensors: dict[str, Any] = {}
    files: dict[str, Any] = {}
    for file, names in names_of.items():
        sync(folder / file)
        files[file] = {"bytes": (folder / file).stat().st_size, "sha256": sums[file]}
        for name in names:
            shape = list(snapshot.tensors[name].shape)
            part = snapshot.slices.get(name, Slice([0] * len(shape), shape))
            piece = {"file": file, "key": name, "offset": part.offset, "shape": shape}
            dtype = _dtype_name(snapshot.tensors[name].dtype)
            tensors[name] = {"dtype": dtype, "shape": part.whole, "slices": [piece]}
    return Part(tensors, files)


def leave_part(folder: Path, owner: int, part: Part) -> None:
    """Tell the owner that commits what this one wrote; the file appears when it is whole."""
    path = folder / _part_name(owner)
    _write_sealed(path.with_suffix(".new"), {"tensors": part.tensors, "files": part.files})
    path.with_suffix(".new").rename(path)


def take_part(folder: Path, owner: int) -> Part | None:
    """What `leave_part` left; None if it is not there yet."""
    path = folder / _part_name(owner)
    if not path.exists():
        return None
    body = json.loads(path.read_text(encoding="utf-8"))
    if body.pop("sha256", None) != _seal(body):
        raise damaged(path, "its checksum does not match its content")
    path.unlink()
    return Part(body["tensors"], body["files"])


def _part_name(owner: int) -> str:
    return f"part-{owner:05d}.json"


def _write_sealed(path: Path, body: dict[str, Any]) -> int:
    """Write JSON with its own checksum, flush it, and return its size."""
    body = _as_json(body)
    text = json.dumps({"sha256": _seal(body), **body}, indent=1, allow_nan=False)
    path.write_text(text, encoding="utf-8")
    sync(path)
    return len(text)


def read_header(folder: Path) -> Header:
    """Read and check `checkpoint.json`."""
    path = folder / INDEX
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body.get("format") != FORMAT:
            raise CheckpointError(
                f"{path} has format {body.get('format')!r}; this version of Cordée reads format {FORMAT}. "
                "Read it with the version that wrote it."
            )
        if body.pop("sha256", None) != _seal(body):
            raise damaged(path, "its checksum does not match its content")
        return Header(step=int(body["step"]), metrics=dict(body["metrics"]), body=body)
    except FileNotFoundError as problem:
        raise CheckpointError(
            f"{path} is not there: {folder} is no checkpoint. Name a folder that holds one."
        ) from problem
    except (OSError, *DAMAGE) as problem:
        raise damaged(path, str(problem)) from problem


def verify(folder: Path) -> Header:
    """Check every file of a checkpoint against its size and SHA-256; `CheckpointError` names the first damaged one."""
    header = read_header(folder)
    with named(lambda reason: damaged(folder / INDEX, f"its list of files cannot be read ({reason})")):
        _verify(folder, header)
    return header


def _verify(folder: Path, header: Header) -> None:
    for name, entry in header.body["files"].items():
        path = _inside(folder, name)
        try:
            size = path.stat().st_size
            if size != entry["bytes"]:
                raise damaged(path, f"it has {size:,} bytes instead of {entry['bytes']:,}")
            if sha256(path) != entry["sha256"]:
                raise damaged(path, "its SHA-256 is not the one that was written")
        except OSError as problem:
            raise damaged(path, problem.strerror or str(problem)) from problem


def read_folder(folder: Path, *, check: bool, only: str = "") -> Snapshot:
    """Read a checkpoint back, putting sliced tensors together; `only` those whose names begin so."""
    header = verify(folder) if check else read_header(folder)
    with named(lambda reason: damaged(folder / INDEX, f"its index does not fit its files ({reason})")):
        return _read(folder, header, only)


def _read(folder: Path, header: Header, only: str) -> Snapshot:
    stored: dict[str, dict[str, torch.Tensor]] = {}
    for name in header.body["files"]:
        path = _inside(folder, name)
        try:
            stored[name] = read_tensors(path, only=only)[1]
        except (OSError, ValueError) as problem:
            raise damaged(path, str(problem)) from problem
    wanted = ((name, entry) for name, entry in header.body["tensors"].items() if name.startswith(only))
    tensors = {name: _assemble(entry, stored) for name, entry in wanted}
    if not only:
        decode(header.body["meta"], tensors)  # what it names is there
    return Snapshot(tensors, dict(header.body["meta"]))


def _assemble(entry: Mapping[str, Any], stored: Mapping[str, Mapping[str, torch.Tensor]]) -> torch.Tensor:
    pieces = [stored[piece["file"]][piece["key"]] for piece in entry["slices"]]
    dtype = getattr(torch, entry["dtype"])
    if len(pieces) == 1 and list(pieces[0].shape) == entry["shape"] and pieces[0].dtype == dtype:
        return pieces[0]
    held, needed = sum(content.numel() for content in pieces), math.prod(entry["shape"])
    if held != needed:  # before memory for it is asked for
        raise ValueError(f"slices hold {held} of {needed} elements")
    whole = torch.empty(entry["shape"], dtype=dtype)
    for piece, content in zip(entry["slices"], pieces, strict=True):
        where = tuple(
            slice(start, start + length) for start, length in zip(piece["offset"], piece["shape"], strict=True)
        )
        whole[where] = content.reshape(piece["shape"])
    return whole


def _inside(folder: Path, name: str) -> Path:
    """A file of the folder itself; an index must not lead anywhere else."""
    if Path(name).name != name:
        raise damaged(folder / INDEX, f"it names {name!r}, which is not a file of this folder")
    return folder / name


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _as_json(body: dict[str, Any]) -> dict[str, Any]:
    """`body` as a reader will get it, so that both seal the same thing."""
    try:
        return dict(json.loads(json.dumps(body, allow_nan=False)))
    except (TypeError, ValueError) as problem:
        raise CheckpointError(
            f"the snapshot's meta holds what JSON cannot: {problem}. Add values with Snapshot.with_extra."
        ) from problem


def _seal(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def damaged(path: Path, why: str) -> CheckpointError:
    """The error for a file that is not what was written."""
    return CheckpointError(f"{path} is damaged: {why}. Resume from another checkpoint.")
