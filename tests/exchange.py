"""A codec's exchange among replicas that are all in this process."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cordee.sync.codec.seam import Codec, Summed


def exchange(
    codec: Codec,
    flats: Sequence[Tensor],
    windows: Sequence[Sequence[Tensor]],
    memories: Sequence[dict[int, Tensor]],
) -> tuple[list[Tensor], int]:
    """Sum `flats`, one of each replica, in place: what each left out, and the bytes that one of them sent."""
    running = [codec(*given) for given in zip(flats, windows, memories, strict=True)]
    messages, sent = [next(one) for one in running], 0
    left_out: list[Tensor] = []
    while not left_out:
        sent += messages[0].tensor.nbytes
        tensors = [message.tensor for message in messages]
        came = [torch.stack(tensors).sum(0) if isinstance(messages[0], Summed) else tensors for _ in running]
        messages = []
        for one, answer in zip(running, came, strict=True):
            try:
                messages.append(one.send(answer))
            except StopIteration as end:
                left_out.append(end.value)
    return left_out, sent
