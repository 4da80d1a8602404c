"""The checkpoints of a training: written by the worker that speaks for all, and seen through if the run ends early."""

from __future__ import annotations

import functools
import json
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from cordee.core import damage
from cordee.core.errors import CheckpointError, PlanError
from cordee.core.events import CheckpointEvent, WarningEvent
from cordee.group.channel import Channel, Unconnected
from cordee.group.messages import Saving
from cordee.group.team import Team
from cordee.state.checkpoint import Checkpoints
from cordee.state.layout import Owners, tensor_bytes
from cordee.state.naming import MODEL, OPTIM, Snapshot
from cordee.train.agreement import gather_bytes
from cordee.train.copying import Copier, Memory
from cordee.train.job import Save

MOST_S = 120.0
"""How long a checkpoint may still take when the run has failed already: the disk may be what failed."""
COPIED_BYTES = 16 * 2**20
"""A state of fewer bytes is copied; of a larger one a copy would be a second model in memory, while it is written."""
COPY_S = 1.0
"""How long a copy into memory may still take then: an older one is as good."""
WORD_AFTER_S = 2.0
"""After so long the user wants to know what the run waits for."""


class Stall:
    """How long the training has stood still for one checkpoint: to begin it, and before the next update."""

    def __init__(self, seconds: float) -> None:
        """So long until now."""
        self._seconds, self._since = seconds, 0.0

    def seconds(self) -> float:
        """Until now; the thread that writes asks, and the training may just be waiting for it."""
        return self._seconds + (time.perf_counter() - self._since if self._since else 0.0)

    @contextmanager
    def lasting(self) -> Iterator[None]:
        """The training stands still in here."""
        self._since = time.perf_counter()
        try:
            yield
        finally:
            self._seconds, self._since = self.seconds(), 0.0


class Saver:
    """Writes checkpoints into a folder, by a rule, and says so in the record when they stand."""

    def __init__(self, folder: Path, rule: Save, channel: Channel | Unconnected, memory: Memory | None = None) -> None:
        """Nothing is written or read yet; `memory` is for what `copy` makes."""
        self._folder, self._rule, self._channel, self._memory = folder, rule, channel, memory
        self.owners = Owners()
        """Which of several writers this worker is."""
        self._live: list[tuple[Checkpoints, Stall]] = []
        """Those whose checkpoint under way reads tensors that the next update changes."""
        self.step = -1
        """The step of the last checkpoint that was begun; -1 if it has to be written again."""

    @functools.cached_property
    def _checkpoints(self) -> Checkpoints:
        """Made when it is first needed, on the workers that write or read."""
        keep_last, keep_best = self._rule.keep_last, self._rule.keep_best
        return Checkpoints(self._folder, keep_last=keep_last, keep_best=keep_best, owners=self.owners)

    @functools.cached_property
    def _copies(self) -> Checkpoints:
        """The same for copies in memory."""
        assert self._memory is not None
        copier = Copier(self._memory, self._channel.worker, self._channel.post)

        def write(taken: Snapshot, step: int, metrics: Mapping[str, float], on_read: Callable[[], None]) -> Path:
            self._channel.send()  # a state that outlives this worker is not newer than the record of its steps
            return copier.write(taken, self.owners, step, metrics, on_read)

        return Checkpoints(self._memory.folder, owners=self.owners, write=write)

    @property
    def live(self) -> bool:
        """Whether something under way reads tensors that the next update changes."""
        return bool(self._live)

    def check_shared(self, team: Team) -> None:
        """Refuse a folder that the workers of a replica do not have in common; every worker calls this.

        Each writes its part of a checkpoint there, and waits for the parts of the others.
        """
        if self.owners.count < 2:
            return
        mark = self._folder / f".seen-{self.owners.token}"
        if self.owners.first:
            with damage.writing(mark):
                self._folder.mkdir(parents=True, exist_ok=True)
                mark.touch()
        team.share_from_first([torch.zeros(1)])  # now all marks are there
        place = [socket.gethostname(), mark.exists()]
        sides = gather_bytes(team.world, json.dumps(place).encode()) or ()  # none: a worker was lost
        if self.owners.first:
            mark.unlink(missing_ok=True)
        team.share_from_first([torch.zeros(1)])  # none ends the run before the mark is gone
        without = sorted({host for host, sees in map(json.loads, sides) if not sees})
        if without:
            raise PlanError(
                f"the workers of one replica lie on several hosts, and each writes its part of every checkpoint into "
                f"{self._folder}; on {', '.join(without)} that is another folder than on the first one's host. Name a "
                "folder that all hosts see by --out, such as one on NFS, or choose a plan whose replicas fit on a host"
            )

    def latest(self) -> Snapshot:
        """The newest intact checkpoint, in memory or on disk."""
        snapshot, problems = self._checkpoints.read_latest(None if self._memory is None else self._memory.folder)
        if snapshot is None:
            why = "".join(f": {problem.message}" for problem in problems[:1])
            way = "start without it, in another folder"
            raise CheckpointError(f"--resume: there is no intact checkpoint in {self._folder}{why}", next_step=way)
        for problem in problems:
            self._warn(f"an older checkpoint is used: {problem.message}")
        return snapshot

    def took_up(self, step: int) -> None:
        """The training continues after this step. Its checkpoint stands, unless its state was in memory."""
        self.step = step if self._memory is None else -1

    def model_of(self, step: int) -> Snapshot:
        """The model alone, from the checkpoint of this step."""
        found = self._checkpoints.read(step, only=MODEL)
        return Snapshot(found.tensors, {name: found.meta[name] for name in ("aliases", "model")})

    def write(self, step: int, capture: Callable[[], Snapshot], metrics: Mapping[str, float]) -> None:
        """Begin to write the checkpoint of this step, once the one before it stands; its error is raised here.

        `capture` gives a live snapshot: see `before_update`. A small one is copied, and nothing waits for it.
        """
        if step == self.step:
            return
        self.step = step
        at = time.time() + self._channel.clock_offset_s
        say = self._channel.post if self.owners.first else (lambda record: None)
        self._begin(
            self._checkpoints,
            step,
            capture,
            metrics,
            lambda stall: say(CheckpointEvent(step, round(stall.seconds() * 1e3, 3), round(at, 6))),
        )

    def copy(self, step: int, capture: Callable[[], Snapshot]) -> None:
        """Begin to copy the state of this step into memory, if there is any, once the copy before it stands."""
        if self._memory is not None:
            self._begin(self._copies, step, capture, {}, lambda stall: None)

    def _begin(
        self,
        files: Checkpoints,
        step: int,
        capture: Callable[[], Snapshot],
        metrics: Mapping[str, float],
        on_saved: Callable[[Stall], None],
    ) -> None:
        began = time.perf_counter()
        files.close()
        snapshot = capture()
        live = tensor_bytes(snapshot.tensors.values()) > COPIED_BYTES
        if not live:
            snapshot = snapshot.copied()
        stall = Stall(time.perf_counter() - began)
        if live:
            self._live.append((files, stall))
        files.save(snapshot, step=step, metrics=metrics, live=live, on_saved=lambda saved: on_saved(stall))

    def before_update(self) -> None:
        """Wait until what is under way has read all that the next update changes."""
        while self._live:
            files, stall = self._live.pop()
            with stall.lasting():
                files.await_read()

    def close(self) -> None:
        """Wait for the checkpoint under way, and raise its error."""
        self._checkpoints.close()

    def see_through(self, *, most_s: float = MOST_S, word_s: float = WORD_AFTER_S) -> None:
        """The run ends early: let the checkpoint under way come to its end, and say so if it does not."""
        self._see_through(most_s, word_s)
        copies: Checkpoints | None = vars(self).get("_copies")
        if copies is not None:
            copies.await_end(COPY_S)

    def _see_through(self, most_s: float, word_s: float) -> None:
        files: Checkpoints | None = vars(self).get("_checkpoints")  # None: this worker has written nothing
        if files is None or (step := files.under_way) is None:
            return
        what = f"the checkpoint of step {step}"
        self._channel.send(Saving(step, most_s + WORD_AFTER_S))  # and our last words
        ended = files.await_end(word_s)
        if not ended:
            bound = f"at most {most_s:.0f} s; Ctrl-C gives it up"
            self._warn(f"before the run ends: waiting for {what}, which is still being written ({bound})")
            ended = files.await_end(most_s - word_s)
        if not ended:
            self._warn(f"{what} was not written within {most_s:.0f} s, and is given up")
        elif files.problem is not None:
            self._warn(f"{what} was not written: {files.problem}")

    def _warn(self, message: str) -> None:
        self._channel.post(WarningEvent(message))
        self._channel.send()


def owners_of(team: Team, writes: Callable[[str], bool]) -> Owners:
    """Which writer of a checkpoint this worker is, if its replica is the first; every worker calls this.

    `writes`: see `Split.writes`.
    """
    if not team.sliced:
        return Owners()
    token = torch.tensor([secrets.randbits(62)])
    team.share_from_first([token])
    lost = lambda: not team.channel.lost.isdisjoint(team.inside.members)  # noqa: E731
    worker = team.membership.worker
    copied = frozenset(axis for axis in ("shard", "slice") if team.lines.mesh.along(axis, worker)[0] != worker)
    of_stage = lambda name: any(map(writes, names_in(name)))  # noqa: E731
    # Each replica has its own: one that takes over may write the checkpoint that another one has left half-written.
    token_of_replica = f"{int(token):x}-{team.replica}"
    return Owners(team.inside.rank, team.inside.size, token_of_replica, copied=copied, writes=of_stage, lost=lost)


def names_in(name: str) -> Iterator[str]:
    """What the parameter or buffer may be called to which a tensor of a checkpoint belongs."""
    if name.startswith(MODEL):
        yield name[len(MODEL) :]
    elif name.startswith(OPTIM):  # optim.<optimizer>.<parameter>.<state>, all of which may hold dots
        parts = name.split(".")
        yield from (".".join(parts[2:end]) for end in range(3, len(parts)))
