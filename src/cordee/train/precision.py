"""Number formats of the mathematics: fp32, tf32, bf16, and fp16 with a loss scaled so that gradients do not vanish.

Parameters, gradients on the wire and optimizers stay in fp32 whatever the format. The scale follows the *global*
gradient, which is the same on every worker, so all of them change it alike and no collective is needed for it. It
changes between steps only: one step may have several backward passes and updates, all with the same scale.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cordee.core.errors import DivergedError, UsageError
from cordee.feed.source import map_tensors

DTYPES = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
FIRST_SCALE = 65_536.0
LEAST_SCALE = 2.0**-14
GROW_AFTER = 2_000
"""Good steps in a row before the scale is doubled."""


class Precision:
    """The format of a session, and the scale of its loss."""

    def __init__(self, kind: str, device: str) -> None:
        """`kind` is a plan's precision."""
        self.dtype = DTYPES[kind]
        self._scales = self.dtype == torch.float16
        self.scale = FIRST_SCALE if self._scales else 1.0
        self._kind = kind
        self._entered = self.dtype is None
        """Whether the loop has computed under `autocast`; nothing else makes the format effective."""
        self._good = 0
        self._seen: bool | None = None
        """Whether all gradients of this step were finite; None: there were none yet."""
        self.skipped = 0
        """Updates that changed nothing, because their gradient did not fit into fp16 at the scale of the loss."""
        self._device = torch.device(device).type
        if kind == "tf32":
            torch.set_float32_matmul_precision("high")

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Compute in this format what gains by it."""
        if self.dtype is None:
            return contextlib.nullcontext()
        self._entered = True
        return torch.autocast(self._device, dtype=self.dtype)

    def check_entered(self) -> None:
        """Refuse a loop that computes in another format than the plan says."""
        if not self._entered:
            raise UsageError(
                f"the plan says precision={self._kind}, but this loop computes in fp32: put the forward pass and the "
                "loss under `with s.autocast():`"
            )

    def saw(self, finite: bool) -> None:
        """The gradient of an update was finite, or it was not and the update changed nothing."""
        self._seen = finite and self._seen is not False
        self.skipped += not finite

    def begin_step(self) -> None:
        """A new step begins: its scale follows what the last one has seen."""
        self.scale, self._good = self._next()
        self._seen = None
        if self.scale < LEAST_SCALE:
            raise DivergedError(
                "the gradient does not fit into fp16 at any scale of the loss. Usual causes: a learning rate that is "
                "too high, NaN in the data, a model whose activations are too large for fp16: try precision=bf16"
            )

    def to_dict(self) -> dict[str, float]:
        """For a checkpoint, which is made between two steps."""
        scale, good = self._next()
        return {"scale": scale, "good": good}

    def take_up(self, kept: dict[str, float]) -> None:
        """From a checkpoint; a run that is resumed in another format begins anew."""
        if self._scales and kept.get("scale", 1.0) != 1.0:
            self.scale, self._good = float(kept["scale"]), int(kept["good"])

    def _next(self) -> tuple[float, int]:
        """The scale of the next step, and the good steps in a row before it."""
        if not self._scales or self._seen is None:
            return self.scale, self._good
        if not self._seen:
            return self.scale / 2, 0
        good = self._good + 1
        return self.scale * 2 if good % GROW_AFTER == 0 else self.scale, good


def widened(output: Any) -> Any:
    """An output with its half-precision numbers in fp32, as metrics expect them."""
    return map_tensors(lambda one: one.float() if one.dtype in (torch.bfloat16, torch.float16) else one, output)


class Readings:
    """Losses on their way from the device: on a GPU they are read while the backward pass goes on."""

    def __init__(self) -> None:
        """Nothing is on its way."""
        self._coming: list[tuple[Tensor, float, torch.cuda.Event | None, int]] = []
        self._free: list[tuple[Tensor, torch.cuda.Event]] = []

    def add(self, value: Tensor, factor: float, place: int = 0) -> None:
        """Begin to fetch `value`, which counts `factor` times, at this `place`; nothing waits for it yet."""
        if not value.is_cuda:
            self._coming.append((value.detach(), factor, None, place))
            return
        # Pinned memory and events are used again: to make them costs as much as a few kernels.
        if not self._free:
            exact = torch.empty((), dtype=torch.float64, pin_memory=True)
            self._free.append((exact, torch.cuda.Event()))  # type: ignore[no-untyped-call]
        here, event = self._free.pop()
        here.copy_(value.detach().reshape(()), non_blocking=True)
        event.record()
        self._coming.append((here, factor, event, place))

    @property
    def waiting(self) -> bool:
        """Whether anything was added since `clear`."""
        return bool(self._coming)

    def total(self) -> float:
        """The sum of all that was added since `clear`."""
        return sum(self._values())

    def totals(self, places: int) -> list[float]:
        """The same by place, of which there are so many."""
        sums = [0.0] * places
        for (*_, place), value in zip(self._coming, self._values(), strict=True):
            sums[place] += value
        return sums

    def _values(self) -> Iterator[float]:
        for value, factor, event, _ in self._coming:
            if event is not None:
                event.synchronize()
            yield value.item() * factor

    def clear(self) -> None:
        """A new step begins."""
        self._free += [(value, event) for value, _, event, _ in self._coming if event is not None]
        self._coming.clear()
