"""Giving a snapshot to peers that do not have its files: the worker that speaks for all reads, everybody gets it."""

from __future__ import annotations

import json

import torch

from cordee.core.errors import CheckpointError
from cordee.group.rope import Rope
from cordee.state.naming import Snapshot


def share_snapshot(rope: Rope, snapshot: Snapshot | None) -> Snapshot:
    """The first member's snapshot, on every member; the others pass None."""
    if rope.size == 1 and snapshot is not None:
        return snapshot
    table = b""
    if snapshot is not None:
        shapes = [[name, str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in snapshot.tensors.items()]
        table = json.dumps({"meta": snapshot.meta, "tensors": shapes}).encode()
    length = torch.tensor([len(table)])
    _share(rope, [length])
    content = torch.frombuffer(bytearray(table or bytes(int(length))), dtype=torch.uint8)
    _share(rope, [content])
    described = json.loads(bytes(content.tolist()))
    tensors = snapshot.tensors if snapshot is not None else _empty(described["tensors"])
    _share(rope, list(tensors.values()))
    return Snapshot(tensors, described["meta"])


def _share(rope: Rope, tensors: list[torch.Tensor]) -> None:
    if not rope.share_from_first(tensors):
        raise CheckpointError("the worker that read the checkpoint was lost before everybody had it: resume again")


def _empty(table: list[tuple[str, str, list[int]]]) -> dict[str, torch.Tensor]:
    return {name: torch.empty(shape, dtype=getattr(torch, kind)) for name, kind, shape in table}
