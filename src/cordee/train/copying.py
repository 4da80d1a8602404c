"""Copies of the state into memory: of this host, and of the next one. What a run continues from if no replica is left.

A copy that fails costs nothing but itself: the run goes on, and would continue from an older state.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cordee.core.errors import CordeeError
from cordee.core.events import Event, WarningEvent
from cordee.core.machine import available_memory
from cordee.group.bulk import Gone, Link, dial
from cordee.group.messages import Who
from cordee.group.wire import Address
from cordee.state.apart import Part
from cordee.state.layout import Owners, tensor_bytes, write_part
from cordee.state.naming import Snapshot
from cordee.state.peers import ROOM, send_part

SILENCE_S = 20.0
"""How long the other host may take to answer, or to take what is sent."""
MOST_WARNED = 3
"""So many times a worker says that a copy failed."""


@dataclass(frozen=True)
class Memory:
    """Where copies of the state go."""

    folder: Path
    """In the memory of this host."""
    peer: Address | None = None
    """The launcher of the next host; None if there is none."""


class Copier:
    """Writes this worker's part of a copy; called by the thread that writes checkpoints."""

    def __init__(self, memory: Memory, worker: int, tell: Callable[[Event], None]) -> None:
        """Nothing is sent yet."""
        self._memory, self._tell = memory, tell
        self._who = Who("worker", socket.gethostname(), worker)
        self._link: Link | None = None
        self._warned = 0

    def write(
        self, snapshot: Snapshot, owners: Owners, step: int, metrics: Mapping[str, float], on_read: Callable[[], None]
    ) -> Path:
        """Into the memory of this host, and of the next one; what goes wrong is told."""
        part = Part(step, owners.token, owners.number)
        try:
            self._write_here(snapshot, owners, part, metrics, on_read)
            self._send(part)
        except (OSError, CordeeError) as error:
            self._warn(f"the state of step {step} was not copied into memory: {error}")
        return part.place(self._memory.folder)

    def _write_here(
        self, snapshot: Snapshot, owners: Owners, part: Part, metrics: Mapping[str, float], on_read: Callable[[], None]
    ) -> None:
        needed, free = tensor_bytes(snapshot.tensors.values()), available_memory()
        if free < ROOM * needed:
            raise OSError(f"{needed >> 20:,} MiB are needed, and {free >> 20:,} MiB of memory are free")
        part.discard(self._memory.folder)  # of this step, from before it was done again
        place = part.place(self._memory.folder)
        place.mkdir(exist_ok=True)
        own = snapshot if owners.first else snapshot.only(owners.writes, owners.copied)
        content = {"count": owners.count, "metrics": dict(metrics), **write_part(place, own, owners.number, on_read)}
        part.describe(self._memory.folder, content | {"meta": owners.described(snapshot)})

    def _send(self, part: Part) -> None:
        if self._memory.peer is None:
            return
        try:
            try:
                reason = send_part(self._open(), self._memory.folder, part)
            except Gone:  # it hangs up where copies come seldom
                reason = send_part(self._open(anew=True), self._memory.folder, part)
        except Gone as error:
            reason = str(error)
        if reason:
            self._warn(f"the next host did not take a copy of the state of step {part.step}: {reason}")

    def _open(self, *, anew: bool = False) -> Link:
        assert self._memory.peer is not None
        if self._link is not None and anew:
            self._link.close()
            self._link = None
        if self._link is None:
            self._link = dial(self._memory.peer, self._who, SILENCE_S)
        return self._link

    def _warn(self, message: str) -> None:
        self._warned += 1
        if self._warned <= MOST_WARNED:
            self._tell(WarningEvent(message))
