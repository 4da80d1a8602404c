"""Buffers of models: part of a step, so undone with it when it is void, and agreed on when they follow their batch.

A forward pass may change a buffer by its batch: a moving centre, InstanceNorm's statistics, counts of what came. Every
worker changes its own, by its share. Before a step commits they agree: numbers become the mean over the workers,
weighted by samples, which is what one process has if a buffer follows a mean over samples; counts are added up. Whether
it is so is tried once for each buffer that differs, on two parts of a share; if not, the run is said to be statistical.
BatchNorm has its own way, within the forward pass.

Which buffers live is not known before they change. The first time, the step is done again, now that all workers know;
from then on a step of such a model has one gather more. Others pay a look at each buffer's version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cordee.diagnose.rows import Call, follows_its_rows
from cordee.feed.source import map_tensors
from cordee.group.comm import Comm
from cordee.group.team import Team
from cordee.sync.batchnorm import StepState
from cordee.train.merging import add_counts, average, some_replica_has

QUIET = 16
"""Looks in a row at which a buffer held what it had held: after that its version is believed."""
Key = tuple[nn.Module, str]
"""A buffer: its module, and its name there."""
Snapshot = dict[Key, "tuple[Tensor, Tensor] | None"]
"""Of each buffer the tensor itself, and what it held; None where there is none."""


@dataclass
class _Kept:
    """A buffer when the step began, and what is known of it.

    It is copied whether or not its version has moved: a module may put another tensor in the place of a buffer, and
    writes through `.data` are not counted.
    """

    tensor: Tensor
    copy: Tensor
    version: int
    quiet: int = 0
    """Looks in a row without news."""
    settled: tuple[Tensor, int] | None = None
    """The tensor and its version when the last step ended: what changes from there on is not of a step."""
    lives: bool = False
    outside: bool = False
    """Changed after the news of a step were sent, or by code behind it."""
    tried: bool = False

    def is_constant(self, buffer: Tensor) -> bool:
        """Whether the copy is believed to be that of `buffer` as it is now."""
        return self.quiet >= QUIET and buffer is self.tensor and buffer._version == self.version

    def has_changed(self, buffer: Tensor | None) -> bool:
        """Whether it holds something else than when the step began; of another shape (a cache), it is not counted."""
        if buffer is None or not _alike(buffer, self.copy) or self.is_constant(buffer):
            return False
        same = torch.equal(buffer, self.copy)
        self.quiet = self.quiet + 1 if same else 0
        return not same

    def moved(self, buffer: Tensor) -> bool:
        """Whether it has changed since the last step ended."""
        if self.settled is None or not _alike(buffer, self.settled[0]):
            return False
        return buffer is not self.settled[0] or buffer._version != self.settled[1]


class Buffers:
    """The buffers of a session's models."""

    def __init__(self, comm: Comm, state: StepState, models: Sequence[nn.Module], warn: Callable[[str], None]) -> None:
        """None lives as far as is known; `warn` is told what keeps a run from being the same as one process."""
        self._comm, self._state, self._models, self._warn = comm, state, models, warn
        self._modules: list[nn.Module] = []
        self._kept: dict[nn.Module, dict[str, _Kept | None]] = {}
        self._plain: list[tuple[Key, _Kept]] = []
        """All that were there when the step began, but those of BatchNorm; on every worker in the same order."""
        self._next: list[Key] | None = None
        """Those that live in the open step, which counts once it is committed."""
        self._asked = False
        """Whether all workers know that some buffer lives of which they have not agreed yet."""
        self._calls: dict[int, list[Call]] = {}
        self._hooks: list[Any] = []
        self.seen = 0
        """Own samples since `merge`."""

    def watch(self, model: nn.Module) -> None:
        """Keep this model's buffers too."""
        self._modules = list(dict.fromkeys([*self._modules, *model.modules()]))
        self.begin()

    # ------------------------------------------------------------- undoing a step

    @torch.no_grad()
    def begin(self) -> None:
        """A step begins, or begins again: this is what it comes back to if it is void."""
        self._next = None
        self._calls.clear()
        groups: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}  # of one type: one kernel on a GPU
        same = True
        for module in self._modules:
            if not (module._buffers or module in self._kept):  # most layers have none
                continue
            kept = self._kept.setdefault(module, {})
            for name, buffer in module._buffers.items():
                before = kept.get(name)
                if buffer is None or before is None:
                    same &= buffer is None and before is None and name in kept
                    kept[name] = None if buffer is None else _Kept(buffer, buffer.clone(), buffer._version)
                    continue
                if before.settled is not None and before.moved(buffer):
                    before.outside = True
                if before.quiet >= QUIET and before.is_constant(buffer):
                    continue
                if buffer is not before.tensor and not _alike(buffer, before.copy):
                    before.copy = buffer.clone()
                else:
                    copies, buffers = groups.setdefault(buffer.dtype, ([], []))
                    copies.append(before.copy)
                    buffers.append(buffer)
                before.tensor, before.version = buffer, buffer._version
            if len(kept) > len(module._buffers):
                same = False
                for name in kept.keys() - module._buffers.keys():
                    del kept[name]
        if not same:
            plain = [(module, kept) for module, kept in self._kept.items() if not isinstance(module, _BatchNorm)]
            self._plain = [
                ((module, name), one) for module, kept in plain for name, one in kept.items() if one is not None
            ]
        for copies, buffers in groups.values():
            torch._foreach_copy_(copies, buffers)

    @torch.no_grad()
    def snapshot(self) -> Snapshot:
        """The buffers as they are now, for `bring_back` in the same step; constants are not copied."""
        taken: Snapshot = {}
        for module in self._modules:
            for name, buffer in module._buffers.items():
                kept = self._kept.get(module, {}).get(name)
                if buffer is None:
                    taken[module, name] = None
                elif kept is not None and kept.is_constant(buffer):
                    taken[module, name] = (buffer, kept.copy)
                else:
                    taken[module, name] = (buffer, buffer.clone())
        return taken

    @torch.no_grad()
    def bring_back(self, taken: Snapshot | None = None) -> None:
        """A step was void: undo what it did to the buffers; or make them what they were when `taken`."""
        if taken is None:
            taken = {
                (module, name): None if one is None else (one.tensor, one.copy)
                for module, kept in self._kept.items()
                for name, one in kept.items()
            }
        for module in self._modules:
            for name in [name for name in module._buffers if (module, name) not in taken]:
                del module._buffers[name]
        for (module, name), pair in taken.items():
            module._buffers[name] = None if pair is None else pair[0]
            if pair is not None and not torch.equal(*pair):
                pair[0].copy_(pair[1])

    # ------------------------------------------------------------- those that live

    def changed(self) -> set[Key]:
        """Those that do not live so far, but changed in this step, or outside of it."""
        return {
            key
            for key, one in self._plain
            if not one.lives and (one.outside or one.has_changed(key[0]._buffers.get(key[1])))
        }

    def news(self) -> bool:
        """Whether a buffer changed in this step that did not live so far."""
        return not self._asked and self._comm.size > 1 and bool(self.changed())

    def agree(self, samples: int, *, exact: bool) -> None:
        """Make the living buffers those of the global batch; the step is void if that fails.

        `samples` is what this worker has seen in the step; `exact` says that a mean over samples is what they follow.
        """
        live = [key for key, one in self._plain if one.lives]
        if self._asked:
            changed = self.changed().union(live)
            masks = self._comm.gather(
                torch.tensor([key in changed for key, _ in self._plain], dtype=torch.uint8)
            ).wait()
            if masks is None:
                self._state.void = True
                return
            live = [key for (key, _), lives in zip(self._plain, torch.stack(masks).any(0), strict=True) if lives]
        elif not live:
            return
        numbers = [_wide(_at(key)) for key in live]
        table = self._comm.gather(torch.cat([torch.tensor([float(samples)], dtype=torch.float64), *numbers])).wait()
        if table is None:
            self._state.void = True
            return
        self._next = live
        weights, *values = torch.split(torch.stack(table), [1, *map(len, numbers)], dim=1)
        self._settle(live, weights[:, 0], values, exact)

    def commit(self, news: float) -> bool:
        """The step's numbers are agreed on; False if it has to be done again, because buffers live on some worker."""
        if self._comm.size == 1:
            return True
        if news:
            self._asked = True
            self._watch()
            return False
        if self._next is not None:
            self._asked = False
        self.end_step()
        for key, one in self._plain:
            one.lives |= key in (self._next or ())
            one.outside = not one.lives and one.has_changed(key[0]._buffers.get(key[1]))  # after its news were sent
        return True

    def end_step(self) -> None:
        """The step is committed, or undone: what changes from here on is not of a step."""
        for (module, name), one in self._plain:
            buffer = module._buffers.get(name)
            one.settled = None if buffer is None else (buffer, buffer._version)

    def living(self) -> list[bool]:
        """Of each buffer, whether it lives: for a worker that enters."""
        return [one.lives for _, one in self._plain]

    def take_up(self, living: Sequence[bool]) -> None:
        """Enter a run in which these live; the other workers have tried already what they follow."""
        for (_, one), lives in zip(self._plain, living, strict=False):
            one.lives = one.tried = lives

    def _settle(self, live: Sequence[Key], weights: Tensor, values: Sequence[Tensor], exact: bool) -> None:
        """Write what is agreed on into the buffers; `values`: each buffer's numbers on each worker."""
        judge, some = int(weights.argmax()), weights > 0
        suspects, known = [], dict(self._plain)
        for key, table in zip(live, values, strict=True):
            one, seen = known[key], table[some]
            if len(seen) and not torch.equal(seen, seen[:1].expand_as(seen)) and not one.tried:
                suspects.append((key, one))
            if len(seen):
                _write(_at(key), _merged(seen, weights[some], _at(key), one.copy))
        if not suspects or (weights[judge] < 2 and self._hooks):  # one sample has no parts: tried with a later step
            return
        calls = dict(self._calls)
        self._unwatch()
        for key, one in suspects:
            one.tried = True
            if self._comm.rank != judge or (exact and not one.outside and self._follows(key, calls)):
                continue
            how = "outside of the forward pass" if one.outside else "by something else than a mean over samples"
            places = (place for model in self._models for place, module in model.named_modules() if module is key[0])
            whole = f"{next(places)}.{key[1]}".lstrip(".")
            self._warn(
                f"the buffer {whole} of {type(key[0]).__name__} changes with each worker's share, {how}: the workers "
                "go on with the mean of theirs, weighted by samples. To have it as one process has it, compute it in "
                "the forward pass from what cordee.gather gives"
            )

    def _follows(self, key: Key, calls: dict[int, list[Call]]) -> bool:
        """Whether the buffer of two parts of this worker's share adds up to that of the whole."""
        taken = self.snapshot()
        void, self._state.void = self._state.void, True  # no other worker computes this: layers must not ask for them
        try:
            return follows_its_rows(*key, calls.get(id(key[0]), []), self.bring_back)
        finally:
            self._state.void = void
            self.bring_back(taken)

    def _watch(self) -> None:
        """Note how the modules whose buffers changed are called, for the step that is done again."""
        self._unwatch()
        for module in {key[0] for key in self.changed()}:
            self._hooks.append(module.register_forward_pre_hook(self._note, with_kwargs=True))

    def _note(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if module.training:
            self._calls.setdefault(id(module), []).append(map_tensors(Tensor.detach, (args, kwargs)))

    def _unwatch(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._calls.clear()

    # ------------------------------------------------------------- batchnorm=replica

    def merge(self, team: Team, *, parts: int = 0) -> None:
        """Give all replicas the mean of their floating buffers, weighted by the samples that each has seen.

        After a window, whose steps have so many `parts`, whole numbers too: what replicas have added is added up.
        """
        seen, self.seen = self.seen, 0
        kept = [(module, one) for module, of in self._kept.items() for one in of.values() if one is not None]
        if parts:  # what is constant is not sent
            kept = some_replica_has(lambda pair: pair[1].has_changed(pair[1].tensor), kept, team)
            add_counts([(one.tensor, one.copy, parts * isinstance(module, _BatchNorm)) for module, one in kept], team)
        average([one.tensor for _, one in kept], seen, team)


def _at(key: Key) -> Tensor:
    """A buffer as it is now."""
    found = key[0]._buffers[key[1]]
    assert found is not None
    return found


def _alike(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)


def _wide(buffer: Tensor) -> Tensor:
    """Its numbers in float64 on the CPU, side by side."""
    plain = torch.view_as_real(buffer) if buffer.is_complex() else buffer
    return plain.detach().to("cpu", torch.float64).reshape(-1)


def _merged(seen: Tensor, weights: Tensor, buffer: Tensor, before: Tensor) -> Tensor:
    """What the global batch makes of a buffer, from what the shares made of it: (workers, numbers)."""
    if torch.equal(seen, seen[:1].expand_as(seen)):
        return seen[0]
    if buffer.is_floating_point() or buffer.is_complex():
        return (seen * weights[:, None]).sum(0) / weights.sum()
    start = _wide(before)
    return seen.amax(0) if buffer.dtype == torch.bool else start + (seen - start).sum(0)


@torch.no_grad()
def _write(buffer: Tensor, numbers: Tensor) -> None:
    """Put what is agreed on into a buffer, unless it is there already."""
    wanted = torch.view_as_complex(numbers.view(*buffer.shape, 2)) if buffer.is_complex() else numbers
    wanted = wanted.to(buffer).view(buffer.shape)
    if not torch.equal(wanted, buffer):
        buffer.copy_(wanted)
