"""Sums of gradients by a codec, with error feedback: what a step leaves out is added to the next one's gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cordee.group.comm import Comm, Gathering, Handle
from cordee.group.team import Team
from cordee.sync.buckets import Bucket
from cordee.sync.codec.half import to_bf16, to_fp16
from cordee.sync.codec.int8 import to_int8
from cordee.sync.codec.onebit import to_onebit
from cordee.sync.codec.powersgd import to_powersgd
from cordee.sync.codec.seam import Codec, Exchange, Gathered, Summed, cut_as
from cordee.sync.codec.topk import to_topk
from cordee.sync.seam import Kept

CODECS: dict[str, Codec] = {
    "bf16": to_bf16,
    "fp16": to_fp16,
    "int8": to_int8,
    "onebit": to_onebit,
    "topk": to_topk,
    "powersgd": to_powersgd,
}
"""By the plan's name for it."""


LEFT_OUT, LEFT_OUT_OF_MERGES = "left out", "left out of merges"
"""The names of what is kept: of gradients, and of parameters that are merged."""


class Exact:
    """Sums over all replicas of gradients as they are."""

    def __init__(self, team: Team) -> None:
        """The team's own sums."""
        self.team = team

    def begin(self) -> None:
        """A step begins, or begins again."""

    def sum(self, bucket: Bucket, turn: int) -> Handle:
        """Begin to add up a bucket in place."""
        return self.team.sums.sum(bucket.flats[turn])

    def commit(self) -> None:
        """The step has committed."""

    def merge(self) -> Kept:
        """What is to be saved."""
        return {}


class Lossy(Exact):
    """Sums over all replicas by one codec; what is left out belongs to this replica."""

    def __init__(
        self, codec: str, parameters: Sequence[nn.Parameter], team: Team, kept: Kept, name: str = LEFT_OUT
    ) -> None:
        """`kept` has under this `name` what all replicas together had left out so far; each has its part of it."""
        super().__init__(team)
        self._codec, self._parameters, self.name = CODECS[codec], parameters, name
        begun = zip(parameters, kept.get(name, []), strict=False)
        self._left_out = {parameter: one.to(parameter) / team.replicas for parameter, one in begun}
        """For each parameter, what this replica has not sent yet, as far as steps have committed."""
        self._all_left_out: list[Tensor] | None = None
        """The same of all replicas together, as long as no step follows."""
        self._memory: dict[nn.Parameter, dict[int, Tensor]] = {}
        self._open: list[tuple[Bucket, Exchanging]] = []
        """Of the open step."""

    def begin(self) -> None:
        """A step begins, or begins again."""
        self._open.clear()

    def sum(self, bucket: Bucket, turn: int) -> Handle:
        """The same, with what was left out of its gradients before; a bucket without any is added up as it is."""
        if not bucket.parameters:
            return super().sum(bucket, turn)
        self.add_left_out(bucket, turn)
        self.team.sums.instead_of(bucket.flats[turn])
        memory = dict(self._memory.get(bucket.parameters[0], {}))
        exchange = self._codec(bucket.flats[turn], bucket.views[turn], memory)
        self._open.append((bucket, Exchanging(self.team.sums, exchange, memory)))
        return self._open[-1][1]

    def add_left_out(self, bucket: Bucket, turn: int) -> None:
        """To the gradients of a bucket, what former steps have left out of them."""
        for parameter, window in zip(bucket.parameters, bucket.views[turn], strict=True):
            if parameter in self._left_out:
                window.add_(self._left_out[parameter])

    def commit(self) -> None:
        """The step has committed: what it left out comes with the next one."""
        self._all_left_out = None
        for bucket, one in self._open:
            # None: the result was handed over by a peer, with all that this replica had sent.
            rest = one.left_out if one.left_out is not None else torch.zeros_like(bucket.flats[0])
            self._left_out.update(zip(bucket.parameters, cut_as(rest, bucket.views[0]), strict=True))
            self._memory[bucket.parameters[0]] = one.memory
        self._open.clear()

    def merge(self) -> Kept:
        """What all replicas have left out, added up; from here on each has its part of it."""
        while self._all_left_out is None:
            own = [self._left_out.get(one) for one in self._parameters]
            total = [
                torch.zeros_like(p) if one is None else one.clone()
                for p, one in zip(self._parameters, own, strict=True)
            ]
            if self.team.replicas == 1 or self.team.agree(total):
                self._all_left_out = [one.detach() for one in total]
        total = self._all_left_out
        self._left_out = dict(zip(self._parameters, [one / self.team.replicas for one in total], strict=True))
        return {self.name: total}


class Exchanging(Handle):
    """A sum by a codec that was begun."""

    __slots__ = ("_exchange", "_message", "_sent", "left_out", "memory")

    def __init__(self, comm: Comm, exchange: Exchange, memory: dict[int, Tensor]) -> None:
        """Send its first message."""
        super().__init__(comm, None)
        self._exchange, self.memory = exchange, memory
        self.left_out: Tensor | None = None
        """Known at its end."""
        self._send(comm, next(exchange))

    def _send(self, comm: Comm, message: Summed | Gathered) -> None:
        self._message = message.tensor
        self._sent: Handle | Gathering | None
        send = comm.sum if isinstance(message, Summed) else comm.gather
        self._sent = send(message.tensor, encoded=True)

    def wait(self) -> bool:
        """Until the sum is there; False if a member was lost before that."""
        while self._sent is not None:
            came = self._sent.wait()
            if came is None or came is False:
                self._sent = None
                break
            try:
                assert self._comm is not None
                self._send(self._comm, self._exchange.send(self._message if came is True else came))
            except StopIteration as end:
                self.left_out, self._sent, self._ended = end.value, None, True
        return self._ended

    def may_commit(self) -> bool:
        """Not before it has ended: its messages follow each other, and none may come after the sum that commits."""
        return self.wait()
