"""Buffers that a forward pass changes (running statistics): part of a step, so undone with it when it is void."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cordee.group.rope import Rope

LARGE_BYTES = 16_384
"""A buffer so large (a mask, a table) is looked at before it is copied."""
QUIET = 16
"""Looks in a row at which a large buffer held what it had held: after that its version is believed."""


@dataclass
class _Kept:
    """A buffer at the start of a step: the tensor itself, and what it held."""

    tensor: Tensor
    copy: Tensor
    version: int
    quiet: int = 0
    """Looks in a row without news."""

    def holds(self, buffer: Tensor) -> bool:
        """Whether the copy is known to be that of `buffer` as it is now."""
        if not buffer.is_cpu or buffer.nbytes < LARGE_BYTES or buffer is not self.tensor:
            return False
        same = buffer._version == self.version and (self.quiet >= QUIET or torch.equal(buffer, self.copy))
        self.quiet = self.quiet + 1 if same else 0
        return same


class BufferKeeper:
    """Remembers the buffers of models at the start of a step.

    They are found by module and name, and copied whether or not their version has moved: a module may put another
    tensor in the place of a buffer, and writes through `.data` are not counted. A large one that does not change for
    some steps is taken for a constant, until its version says otherwise.
    """

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._modules: list[nn.Module] = []
        self._kept: list[dict[str, _Kept | None]] = []
        """For each module, its buffers by name; None where there is none."""

    def watch(self, model: nn.Module) -> None:
        """Remember this model's buffers too."""
        self._modules = list(dict.fromkeys([*self._modules, *model.modules()]))
        self._kept += [{} for _ in range(len(self._modules) - len(self._kept))]
        self.remember()

    def remember(self) -> None:
        """A step begins: this is what a void step comes back to."""
        pairs = zip(self._modules, self._kept, strict=True)
        if holders := [(module, kept) for module, kept in pairs if module._buffers or kept]:  # most layers have none
            self._remember(holders)

    @torch.no_grad()
    def _remember(self, holders: list[tuple[nn.Module, dict[str, _Kept | None]]]) -> None:
        groups: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}  # of one type: one kernel on a GPU
        for module, kept in holders:
            for name, buffer in module._buffers.items():
                before = kept.get(name)
                if buffer is None:
                    kept[name] = None
                elif before is not None and (before.tensor is buffer or _alike(buffer, before.copy)):
                    if before.holds(buffer):
                        continue
                    before.tensor, before.version = buffer, buffer._version
                    copies, buffers = groups.setdefault(buffer.dtype, ([], []))
                    copies.append(before.copy)
                    buffers.append(buffer)
                else:
                    kept[name] = _Kept(buffer, buffer.clone(), buffer._version)
            if len(kept) > len(module._buffers):
                for name in kept.keys() - module._buffers.keys():
                    del kept[name]
        for copies, buffers in groups.values():
            torch._foreach_copy_(copies, buffers)

    @torch.no_grad()
    def bring_back(self) -> None:
        """A step was void: undo what it did to the buffers."""
        for module, kept in zip(self._modules, self._kept, strict=True):
            for name in module._buffers.keys() - kept.keys():
                del module._buffers[name]
            for name, before in kept.items():
                module._buffers[name] = None if before is None else before.tensor
                if before is not None and not torch.equal(before.tensor, before.copy):
                    before.tensor.copy_(before.copy)

    @torch.no_grad()
    def agree(self, rope: Rope, seen: int) -> None:
        """Give all replicas the mean of their floating buffers, weighted by the samples that each has seen."""
        found = {id(one): one for module in self._modules for one in module._buffers.values() if one is not None}
        floating = [buffer for buffer in found.values() if buffer.is_floating_point()]
        while floating and rope.size > 1:
            weight = torch.tensor([float(seen)], dtype=torch.float64)
            sums = [buffer.double() * seen for buffer in floating]
            if not rope.agree([weight, *sums]):
                continue
            if weight:  # otherwise nothing was trained since the last time
                for buffer, total in zip(floating, sums, strict=True):
                    buffer.copy_((total / weight.to(total.device)).reshape(total.shape))
            return


def _alike(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
