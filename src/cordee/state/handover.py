"""Giving a snapshot to peers that do not have its files: rank 0 reads, the others receive it."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch

from cordee.group.team import Team
from cordee.state.naming import Snapshot


def share_snapshot(team: Team, read: Callable[[], Snapshot | None]) -> Snapshot | None:
    """What the first member reads, on every member; if that one is lost before all have it, the next one reads.

    Whether a round counts is decided by agreed values alone, so that all members decide alike: a table that says who
    read, and with the tensors who gave them.
    """
    while True:
        snapshot, table = None, b""
        if team.speaks:
            snapshot = read()
            table = _table(snapshot, team.membership.worker)
        if team.alone and table:
            return snapshot
        length = torch.tensor([len(table)])
        team.share_from_first([length])
        content = torch.frombuffer(bytearray(table or bytes(max(1, int(length)))), dtype=torch.uint8)
        team.share_from_first([content])
        try:
            described = json.loads(content.numpy().tobytes())
        except ValueError:  # zeros, of a member that had not read
            continue
        held = described["tensors"]
        if held is None:
            return None
        tensors = {} if snapshot is None else snapshot.tensors
        for name, kind, shape in held if snapshot is None else ():
            tensors[name] = torch.empty(shape, dtype=getattr(torch, kind))
        giver = torch.tensor([team.membership.worker])
        team.share_from_first([*tensors.values(), giver])
        if int(giver) == described["reader"]:
            return Snapshot(tensors, described["meta"])


def _table(snapshot: Snapshot | None, reader: int) -> bytes:
    """What a snapshot holds beside its tensors, and what these are."""
    if snapshot is None:
        return json.dumps({"reader": reader, "tensors": None}).encode()
    shapes = [[name, str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in snapshot.tensors.items()]
    return json.dumps({"reader": reader, "meta": snapshot.meta, "tensors": shapes}).encode()
