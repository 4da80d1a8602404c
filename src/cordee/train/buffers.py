"""Buffers that a forward pass changes (running statistics): part of a step, so undone with it when it is void."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cordee.group.team import Team

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
    looks: int = 0
    """Looks at its content, whatever its version said."""

    def holds(self, buffer: Tensor) -> bool:
        """Whether the copy is known to be that of `buffer` as it is now."""
        if not buffer.is_cpu or buffer.nbytes < LARGE_BYTES or buffer is not self.tensor:
            return False
        same = buffer._version == self.version and (self.quiet >= QUIET or torch.equal(buffer, self.copy))
        self.quiet = self.quiet + 1 if same else 0
        return same


Key = tuple[nn.Module, str]
"""A buffer: its module, and its name there."""
Snapshot = list[dict[str, "_Kept | None"]]
"""For each module, its buffers by name; None where there is none."""


class BufferKeeper:
    """Remembers the buffers of models at the start of a step.

    They are found by module and name, and copied whether or not their version has moved: a module may put another
    tensor in the place of a buffer, and writes through `.data` are not counted. A large one that does not change for
    some steps is taken for a constant, until its version says otherwise.
    """

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._modules: list[nn.Module] = []
        self._kept: Snapshot = []
        self._plain: list[tuple[nn.Module, dict[str, _Kept | None]]] = []
        """The modules with buffers and what they held when the step began; not BatchNorm, which agrees in its way."""
        self._settled: dict[Key, tuple[Tensor, int]] = {}
        self.seen = 0
        """Own samples since `agree`."""

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
        self._plain.clear()
        for module, kept in holders:
            if module._buffers and not isinstance(module, _BatchNorm):
                self._plain.append((module, kept))
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
    def snapshot(self) -> Snapshot:
        """The buffers as they are now, for `bring_back` in the same step; what has not changed is not copied."""
        taken: Snapshot = []
        for module, kept in zip(self._modules, self._kept, strict=True):
            taken.append({})
            for name, buffer in module._buffers.items():
                before = kept.get(name)
                if buffer is None or (before is not None and before.holds(buffer)):
                    taken[-1][name] = before if buffer is not None else None
                else:
                    taken[-1][name] = _Kept(buffer, buffer.clone(), buffer._version)
        return taken

    @torch.no_grad()
    def bring_back(self, taken: Snapshot | None = None) -> None:
        """A step was void: undo what it did to the buffers; or make them what they were when `taken`."""
        for module, kept in zip(self._modules, taken or self._kept, strict=True):
            for name in module._buffers.keys() - kept.keys():
                del module._buffers[name]
            for name, before in kept.items():
                module._buffers[name] = None if before is None else before.tensor
                if before is not None and not torch.equal(before.tensor, before.copy):
                    before.tensor.copy_(before.copy)

    # ------------------------------------------------------------- those that live

    def keys(self) -> list[Key]:
        """All buffers that were there when the step began, but those of BatchNorm; on every worker the same."""
        return [(module, name) for module, kept in self._plain for name, before in kept.items() if before is not None]

    def at(self, key: Key) -> Tensor:
        """A buffer as it is now."""
        module, name = key
        found = module._buffers[name]
        assert found is not None
        return found

    def before(self, key: Key) -> Tensor:
        """What it held when the step began."""
        module, name = key
        kept = next(kept[name] for one, kept in self._plain if one is module)
        assert kept is not None
        return kept.copy

    def changed(self) -> set[Key]:
        """Those that hold something else than when the step began; of another shape (a cache), they are not counted.

        After some looks at its content, a buffer's version is believed.
        """
        return {
            (module, name) for module, kept in self._plain for name in kept if _has_changed(module, name, kept[name])
        }

    def end_step(self) -> None:
        """The step is committed, or undone: what changes from here on is not of a step."""
        self._settled = {key: (self.at(key), self.at(key)._version) for key in self.keys() if key[1] in key[0]._buffers}

    def moved(self) -> set[Key]:
        """Those that have changed since."""
        now = {key: key[0]._buffers.get(key[1]) for key in self._settled}
        return {
            key
            for key, (tensor, version) in self._settled.items()
            if (one := now[key]) is not None and (one is not tensor or one._version != version) and _alike(one, tensor)
        }

    # ------------------------------------------------------------- batchnorm=replica

    @torch.no_grad()
    def agree(self, team: Team) -> None:
        """Give all replicas the mean of their floating buffers, weighted by the samples that each has seen."""
        seen, self.seen = self.seen, 0
        found = {id(one): one for module in self._modules for one in module._buffers.values() if one is not None}
        floating = [buffer for buffer in found.values() if buffer.is_floating_point() or buffer.is_complex()]
        while floating and team.replicas > 1:
            weight = torch.tensor([float(seen)], dtype=torch.float64)
            sums = [buffer.to(torch.complex128 if buffer.is_complex() else torch.double) * seen for buffer in floating]
            if not team.agree([weight, *sums]):
                continue
            if weight:  # otherwise nothing was trained since the last time
                for buffer, total in zip(floating, sums, strict=True):
                    buffer.copy_((total / weight.to(total.device)).reshape(total.shape))
            return


def _has_changed(module: nn.Module, name: str, before: _Kept | None) -> bool:
    buffer = module._buffers.get(name)
    if buffer is None or before is None or not _alike(buffer, before.copy):
        return False
    if buffer is before.tensor and buffer._version == before.version:
        if before.looks >= QUIET:
            return False
        before.looks += 1
    return not torch.equal(buffer, before.copy)


def _alike(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
