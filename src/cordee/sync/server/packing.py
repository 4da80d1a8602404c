"""Compressed pushes: gradients made smaller by the codecs of all-reduce, with error feedback on the worker.

A server reads a push as one more replica would, whose own gradient is zero. So there is one implementation of each
codec, and it says how many bytes a push of these parameters has: nothing of that is taken from the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cordee.group.bulk import Gone
from cordee.group.team import Team
from cordee.sync.codec.seam import Exchange, Gathered
from cordee.sync.lossy import CODECS, LEFT_OUT, Lossy
from cordee.sync.seam import Kept
from cordee.sync.server import rules
from cordee.sync.server.messages import Form


class Pack(NamedTuple):
    """Gradients of some parameters as they are pushed, and pushed again if a server is lost."""

    numbers: list[int]
    """Of the parameters, within their shard."""
    tensors: list[Tensor]
    left_out: dict[nn.Parameter, Tensor]
    """What counts once the push has."""
    saved: int = 0
    """Bytes of the gradients that are not sent."""


class Packing(Lossy):
    """One codec for the pushes of this worker, and what they have left out so far: as parts of a global batch's mean.

    A gradient that is pushed for the share w of a batch counts w times, and so does what it leaves out.
    """

    def __init__(
        self, codec: str, parameters: Sequence[nn.Parameter], team: Team, kept: Kept, name: str = LEFT_OUT
    ) -> None:
        """`kept` has under this `name` what all replicas together had left out so far; each has its part of it."""
        super().__init__(codec, parameters, team, kept, name)
        self.codec = codec

    def pack(
        self, numbers: list[int], parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor], share: float
    ) -> Pack:
        """Of parameters of one type and device."""
        flat = torch.cat([one.detach().reshape(-1) for one in gradients])
        windows = _windows(flat, [one.shape for one in parameters])
        for parameter, window in zip(parameters, windows, strict=True):
            if parameter in self._left_out:
                window.add_(self._left_out[parameter], alpha=1.0 / share)
        exchange = self._codec(flat, windows, {})
        payload = next(exchange).tensor
        rests = _windows(_finish(exchange, payload).mul_(share), [one.shape for one in parameters])
        return Pack(numbers, [payload.cpu()], dict(zip(parameters, rests, strict=True)), flat.nbytes - payload.nbytes)

    def commit_packs(self, packs: Sequence[Pack]) -> None:
        """These pushes count: what they left out comes with the next ones."""
        self._all_left_out = None
        for pack in packs:
            self._left_out.update(pack.left_out)


def unpack(codec: str, forms: Sequence[Form], receive: Callable[[Sequence[Tensor]], None]) -> list[Tensor]:
    """Receive gradients of parameters of these forms that were packed by a codec; `Gone` if they were not."""
    if codec not in CODECS or len({form.dtype for form in forms}) > 1:
        raise Gone(f"no push is packed by {codec} like this")
    empty = [rules.empty(form) for form in forms]
    flat = torch.zeros(sum(one.numel() for one in empty), dtype=empty[0].dtype if empty else torch.float32)
    windows = _windows(flat, [one.shape for one in empty])
    try:
        message = next(exchange := CODECS[codec](flat, windows, {}))
        if not isinstance(message, Gathered):
            raise Gone(f"{codec} needs sums over the replicas, which no push holds")
        receive([message.tensor])
        _finish(exchange, message.tensor)
    except (RuntimeError, IndexError, TypeError) as error:  # places that are none, a type that it does not know
        raise Gone(f"a push by {codec} cannot be read: {error}") from error
    return windows


def _finish(exchange: Exchange, payload: Tensor) -> Tensor:
    """Read one payload alone: its numbers are in the codec's flat tensor then. What it left out."""
    try:
        exchange.send([payload])
    except StopIteration as end:
        left_out: Tensor = end.value
        return left_out
    raise AssertionError("a codec of pushes has one message")


def _windows(flat: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    parts = torch.split(flat, [shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
