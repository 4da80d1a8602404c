"""One checkpoint folder: tensors in safetensors files, everything else in `checkpoint.json`.

The index gives every tensor a list of slices (file, key, offset, shape), so that a plan which holds a tensor in slices
writes them by all their owners at once, and any other plan can put them together. A checkpoint stands when the first
owner has written the index. Where a worker holds whole tensors, it is the only owner.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cordee.core.damage import named, write_whole
from cordee.core.errors import WaitedTooLong, WorkersLost
from cordee.group.sliced import Place, box_of
from cordee.state.files import read_tensors, sha256, sync, write_tensors
from cordee.state.index import INDEX, check_size, damaged, join, read_index, seal
from cordee.state.naming import Slice, Snapshot
from cordee.state.plain import decode

LOOK_S = 0.01


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of payload that these tensors take in a file."""
    return sum(tensor.nbytes for tensor in tensors)


def write_folder(
    folder: Path,
    snapshot: Snapshot,
    *,
    step: int,
    metrics: Mapping[str, float],
    on_read: Callable[[], None] = lambda: None,
    others: Iterable[dict[str, Any]] = (),
) -> None:
    """Write all files of one checkpoint into an existing folder, and flush them.

    `on_read` is called when no tensor of the snapshot is needed any more: from then on a live one may change. `others`
    gives what other owners have written into the same folder, as it comes.
    """
    part = {"meta": snapshot.meta, **write_part(folder, snapshot, 0, on_read)}
    body = join(part, others, step=step, metrics=metrics)
    (folder / INDEX).write_text(json.dumps({"sha256": seal(body), **body}, indent=1), encoding="utf-8")
    sync(folder / INDEX)
    sync(folder)


def write_part(folder: Path, snapshot: Snapshot, owner: int, on_read: Callable[[], None]) -> dict[str, Any]:
    """Write the tensors of one owner, and flush them; returns its entries of the index."""
    file = f"tensors-{owner:05d}.safetensors"
    checksum = write_tensors(folder / file, snapshot.tensors)
    on_read()
    sync(folder / file)
    tensors: dict[str, Any] = {}
    for name, tensor in snapshot.tensors.items():
        shape = list(tensor.shape)
        nought = [0] * len(shape)
        part = snapshot.slices.get(name, Slice([Place(nought, nought, shape)], shape))
        pieces = [{"file": file, "offset": place.offset, "shape": place.shape} for place in part.places]
        if len(pieces) > 1:
            pieces = [{**piece, "start": place.start} for piece, place in zip(pieces, part.places, strict=True)]
        tensors[name] = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": part.whole, "slices": pieces}
    return {"files": {file: {"bytes": (folder / file).stat().st_size, "sha256": checksum}}, "tensors": tensors}


def read_folder(folder: Path, only: str = "") -> Snapshot:
    """Read a checkpoint back, putting sliced tensors together; `only` those whose names begin so.

    Every file is checked against its size and SHA-256; `CheckpointError` names the first damaged one.
    """
    index = read_index(folder)
    with named(lambda reason: damaged(folder / INDEX, f"it does not fit its files ({reason})")):
        stored = {name: _read_file(folder, name, entry, only) for name, entry in index["files"].items()}
        wanted = {name: entry for name, entry in index["tensors"].items() if name.startswith(only)}
        tensors = {name: _assemble(name, entry, stored) for name, entry in wanted.items()}
        if not only:
            decode(index["meta"], tensors)  # what it names is there
        return Snapshot(tensors, dict(index["meta"]))


def _read_file(folder: Path, name: str, entry: Mapping[str, Any], only: str) -> dict[str, torch.Tensor]:
    path = check_size(folder, name, entry)
    try:
        if sha256(path) != entry["sha256"]:
            raise damaged(path, "its SHA-256 is not the one that was written")
        return read_tensors(path, only=only)[1]
    except OSError as problem:
        raise damaged(path, problem.strerror or str(problem)) from problem
    except ValueError as problem:
        raise damaged(path, str(problem)) from problem


def _assemble(name: str, entry: Mapping[str, Any], stored: Mapping[str, Mapping[str, torch.Tensor]]) -> torch.Tensor:
    pieces = [_box(stored[piece["file"]][name], piece) for piece in entry["slices"]]
    dtype = getattr(torch, entry["dtype"])
    if len(pieces) == 1 and list(pieces[0].shape) == entry["shape"] and pieces[0].dtype == dtype:
        return pieces[0]
    held, needed = sum(content.numel() for content in pieces), math.prod(entry["shape"])
    if held != needed:  # before memory for it is asked for
        raise ValueError(f"slices hold {held} of {needed} elements")
    whole = torch.empty(entry["shape"], dtype=dtype)
    for piece, content in zip(entry["slices"], pieces, strict=True):
        where = zip(piece["offset"], piece["shape"], strict=True)
        whole[tuple(slice(start, start + length) for start, length in where)] = content.reshape(piece["shape"])
    return whole


def _box(content: torch.Tensor, piece: Mapping[str, Any]) -> torch.Tensor:
    """What a piece is of a tensor in a file: all of it, or, from a slice that lies at several places, one box."""
    return box_of(content, piece["start"], piece["shape"]) if "start" in piece else content


@dataclass(frozen=True)
class Owners:
    """Which owner this worker is. They meet in the file system: nothing waits for the training, nor it for them."""

    number: int = 0
    count: int = 1
    token: str = ""
    """The same for all owners, and for no others: by it they find the folder of a checkpoint under way."""

    writes: Callable[[str], bool] = field(default=lambda name: True, compare=False)
    """Of an owner that does not commit: which tensors it writes, as far as no other is before it by `copied`."""

    copied: frozenset[str] = frozenset()
    """Axes of the mesh along which another owner comes before this one, and writes what is not cut along them."""

    lost: Callable[[], bool] = field(default=lambda: False, compare=False)
    """Whether one of the owners was lost: then its slices never come."""

    @property
    def first(self) -> bool:
        """Whether this one commits."""
        return self.number == 0

    def write(self, snapshot: Snapshot, folder: Path, deadline_s: float, on_read: Callable[[], None]) -> None:
        """Of an owner that does not commit: its slices, into the folder that the first owner has made."""
        self._await(folder, "which the first owner makes", deadline_s)
        part = write_part(folder, snapshot.only(self.writes, self.copied), self.number, on_read)
        part["meta"] = self.described(snapshot)
        write_whole(folder / f"part-{self.number:05d}.json", json.dumps(part))

    def described(self, snapshot: Snapshot) -> dict[str, Any]:
        """What this owner says of its part beside the tensors; the first one says all that belongs to none."""
        if self.first:
            return snapshot.meta
        return {name: snapshot.meta.get(name, {}) for name in ("aliases", "model", "optimizers")}

    def parts(self, folder: Path, deadline_s: float) -> Iterator[dict[str, Any]]:
        """Of the first owner: what the others have written, as it comes."""
        for number in range(1, self.count):
            path = folder / f"part-{number:05d}.json"
            self._await(path, f"the slices of owner {number} of {self.count}", deadline_s)
            yield json.loads(path.read_text(encoding="utf-8"))
            path.unlink()

    def _await(self, path: Path, what: str, deadline_s: float) -> None:
        """Wait until `path` is there."""
        deadline = time.monotonic() + deadline_s
        while True:
            lost = self.lost()  # asked before the look: what a lost owner has left is taken
            if path.exists():
                return
            if lost:
                raise WorkersLost(f"a worker that holds slices of the model was lost before {path} came: {what}")
            if time.monotonic() > deadline:
                raise WaitedTooLong(
                    f"a checkpoint waited {deadline_s:g} s for {path}, {what}. All workers that hold slices of a model "
                    "write into the folder of the run: let them see the same one."
                )
            time.sleep(LOOK_S)
