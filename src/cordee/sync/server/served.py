"""Agreement by parameter servers: workers push gradients, servers add them up, update, and send the parameters back.

The optimizer is on the servers: what a worker's own holds is only its settings, such as the learning rate, which travel
with each update. A step of `mode=sync` is all or nothing as with all-reduce: each server has the gradients of all
workers, and its backup too, before the record of the step is added up. That commits it; then the servers update.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from cordee.core.errors import ModelError, UsageError
from cordee.core.events import PushesEvent
from cordee.core.record import Record
from cordee.core.window import InHand
from cordee.group.channel import Channel
from cordee.group.team import Team
from cordee.sync.gradients import norm_of
from cordee.sync.seam import Agreed, Kept, Recorded, Sync, Treatment
from cordee.sync.server import rules
from cordee.sync.server.layout import spread
from cordee.sync.server.packing import Packing
from cordee.sync.server.shards import Shard
from cordee.sync.sparse import is_sparse

T = TypeVar("T")
WAIT_S = 0.05
"""How often a worker asks whether the first one has loaded the servers."""


class Served(Sync):
    """Adds gradients up on parameter servers, which update; see `Sync`."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        optimizer: Optimizer,
        team: Team,
        *,
        servers: int,
        key: int,
        overlap: bool,
        packing: Packing | None = None,
    ) -> None:
        """The servers of the run hold the parameters of this optimizer, the `key`-th; `packing` compresses pushes."""
        super().__init__(parameters)
        self._optimizer, self._team, self._packing = optimizer, team, packing
        channel = team.channel
        assert isinstance(channel, Channel)
        deadline_s, sizes = team.membership.deadline_s, [one.nbytes for one in self.parameters]
        self._shards = [
            Shard(number, [self.parameters[one] for one in numbers], key, channel, deadline_s, packing)
            for number, numbers in enumerate(spread(sizes, servers))
        ]
        self._step = -1
        """Updates that the servers have made; -1: not known yet."""
        self._tries = 0
        """How often gradients of this generation were taken back."""
        self._closed: tuple[int, tuple[int, int], Sequence[int]] | None = None
        """The sum that this worker has asked for last: its step and attempt, and the workers whose sum it is."""
        self._factor = 1.0
        self._overlap, self._armed = overlap, False
        self._awaited: dict[tuple[int, int], int] = {}
        """For each piece, how many gradients are still to come in this backward pass."""
        self._version = 0
        """Of the parameters that this worker has, where pushes are applied by themselves."""
        self._pushes: list[tuple[int, int, int, int]] = []
        """Those of the open window: see `PushesEvent`."""
        self._handles = self._hook() if overlap else []

    def _hook(self) -> list[torch.utils.hooks.RemovableHandle]:
        handles = []
        for shard in self._shards:
            for piece, numbers in enumerate(shard.pieces):
                for number in numbers:
                    hook = partial(self._on_gradient, shard, piece)
                    handles.append(shard.parameters[number].register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]
        return handles

    @property
    def _attempt(self) -> tuple[int, int]:
        return self._team.membership.generation, self._tries

    def begin(self, record: Recorded | None) -> bool:
        """With a `record`, gradients are pushed as they come; without, those that were are taken back."""
        if record is None:
            self._overlap = False
            self._tries += self._armed
            self._armed = False
            return True
        self._armed = self._overlap and self._step >= 0
        self._awaited = {
            (shard.number, piece): len(numbers) for shard in self._shards for piece, numbers in enumerate(shard.pieces)
        }
        return True

    def _on_gradient(self, shard: Shard, piece: int, parameter: nn.Parameter) -> None:
        if not self._armed:
            return
        self._team.meter.look()
        self._awaited[(shard.number, piece)] -= 1
        if self._awaited[(shard.number, piece)] == 0:
            self._team.meter.begun(shard.push(self._step, self._attempt, piece).done)

    def commit(self, record: Recorded, *, void: bool, treatment: Treatment) -> Agreed | None:
        """Push, and wait until the servers have the gradients of all; then the sum of the records commits the step."""
        self._armed = False
        self._refuse_sparse()
        if self.in_hand is not None:
            return self._keep_own(record(), treatment)
        self._closed = None
        squares = [] if void else self._pushed()
        numbers = torch.tensor(record().numbers(), dtype=torch.float64)
        handles = [self._team.sums.sum(numbers)] if self._team.replicas > 1 else []
        if not self._team.settle(handles, [numbers], void=void or None in squares):
            return None
        self._count_pushes()
        norm = math.sqrt(sum(one or 0.0 for one in squares))
        finite = treatment.clip is not None and math.isfinite(norm)
        self._factor = min(1.0, treatment.clip / (norm + 1e-6)) if finite and treatment.clip is not None else 1.0
        return Agreed(Record.summed(numbers.tolist()), True, torch.tensor(norm, dtype=torch.float64))

    def conclude(self) -> bool:
        """After a `commit` that failed: whether the sum is complete on all servers, so that it counts; all ask this.

        A worker that was lost may have known so before the others, and let a server update. No new sum is begun before
        all have agreed on this, so the answer stays the same.
        """
        while True:
            there = self._closed is not None
            if self._closed is not None:
                there = None not in self._all([shard.complete(*self._closed, over=True) for shard in self._shards])
            found = torch.tensor([float(there)])
            if self._team.replicas == 1 or self._team.agree([found]):
                break
        if found > 0:
            self._count_pushes()
        return bool(found > 0)

    def _count_pushes(self) -> None:
        """What was pushed last counts, and so does what it has left out."""
        for shard in self._shards:
            shard.commit()

    def _keep_own(self, record: Record, treatment: Treatment) -> Agreed:
        """In windows nothing is agreed on here: the gradient is bounded by itself."""
        norm = norm_of([one.grad for one in self.parameters if one.grad is not None])
        self._factor = 1.0
        if treatment.clip is not None and norm.isfinite():
            self._factor = min(1.0, treatment.clip / (float(norm) + 1e-6))
        return Agreed(record, True, norm)

    def _pushed(self) -> list[float | None]:
        """The squares of the norms of all sums; None among them if a worker was lost."""
        if not self._load():
            return [None]
        self._closed = self._step, self._attempt, self._team.lines.mesh.leaders
        return self._all([shard.complete(*self._closed) for shard in self._shards])

    def _all(self, exchanges: Sequence[Future[T]]) -> list[T]:
        """Wait for what all servers answer."""
        meter = self._team.meter
        began = meter.look()
        try:
            return [one.result() for one in exchanges]
        finally:
            meter.unblock(began)
            for shard in self._shards:
                sent, near, received = shard.tally.take()
                meter.count(sent - near, near=False)
                meter.count(near, near=True, plain=near + shard.saved)
                shard.saved = 0
                meter.bytes_received += received

    def update(self, optimizer: Optimizer) -> None:
        """Let the servers update, and take the new parameters over."""
        if optimizer is not self._optimizer:
            raise UsageError(
                "sync=server: these parameters were given to a new optimizer, but the servers hold the state of the "
                "first one. Keep one optimizer for them, or use sync=allreduce"
            )
        settings = rules.settings_of(optimizer)
        optimizer._opt_called = True  # type: ignore[attr-defined]  # or torch's schedules warn that none was made
        if self.in_hand is not None:
            self._push_by_itself(self.in_hand, settings)
            return
        assert self._closed is not None
        step, attempt, _ = self._closed  # which may be of the generation before, if a worker was lost
        self._all([shard.apply(step, attempt, self._factor, settings) for shard in self._shards])
        self._step += 1
        self._tries = 0

    def _push_by_itself(self, hand: InHand, settings: list[dict[str, Any]]) -> None:
        """Let the servers apply this part at once, and take the parameters over."""
        while not self._load():
            self._team.recover(())
        item = (*hand.window, hand.step, hand.part)
        fresh = self._all([shard.update(item, hand.share, self._factor, settings) for shard in self._shards])
        version = fresh[0].version
        self._pushes.append((hand.step + 1, hand.part, version, max(0, version - 1 - self._version)))
        self._version = version

    def barrier(self) -> bool:
        """All parts of a window are applied: every replica takes the parameters over as they are then."""
        done = torch.zeros(1)
        if not self._team.settle([self._team.sums.sum(done)] if self._team.replicas > 1 else [], [done]):
            return False
        fresh = self._all([shard.pull() for shard in self._shards])
        self._step = self._version = fresh[0].version
        self._team.channel.post(PushesEvent(self._team.membership.worker, self._step, self._pushes))
        self._pushes = []
        return True

    def merge(self, *, saving: bool = False) -> Kept:
        """Parameters are equal after every step; to be saved, the first worker gets what the optimizers keep."""
        kept = self._packing.merge() if saving and self._packing is not None else {}
        if saving and self._step > 0 and self._team.replica == 0:
            self._all([shard.keep(self._optimizer) for shard in self._shards])
        return kept

    def close(self) -> None:
        """Take the hooks off, and hang up."""
        for handle in self._handles:
            handle.remove()
        for shard in self._shards:
            shard.close()

    def _load(self) -> bool:
        """See that the servers hold the parameters, at the first step of this worker; False if a worker was lost."""
        while self._step < 0:
            opened = self._all([shard.open() for shard in self._shards])
            if all(one.loaded for one in opened):
                self._step, self._version = opened[0].version, opened[0].base
            elif self._team.replica == 0:
                self._all([shard.load(self._optimizer, 0) for shard in self._shards])
            elif self._team.membership.await_break(WAIT_S):
                return False
        return True

    def _refuse_sparse(self) -> None:
        if any(is_sparse(parameter.grad) for parameter in self.parameters):
            raise ModelError(
                "a gradient is sparse (nn.Embedding(sparse=True)), which parameter servers do not take yet: leave "
                "sparse out, or use sync=allreduce"
            )
