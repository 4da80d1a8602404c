"""Buffers that a forward pass changes by its batch: a moving centre, InstanceNorm's statistics, counts of what came.

Every worker changes its own, by its share. Before a step commits they agree: numbers become the mean over the workers,
weighted by samples, which is what one process has if a buffer follows a mean over samples; counts are added up. Whether
it is so is tried once for each buffer that differs, on two parts of a share; if not, the run is said to be statistical.
BatchNorm has its own way, within the forward pass.

Which buffers live is not known before they change. The first time, the step is done again, now that all workers know;
from then on a step of such a model has one gather more. Others pay a look at each buffer's version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cordee.diagnose.rows import Call, follows_its_rows
from cordee.feed.source import map_tensors
from cordee.group.comm import Comm
from cordee.sync.batchnorm import StepState
from cordee.train.buffers import BufferKeeper, Key


class Living:
    """The buffers of a session's models that live, and their agreement."""

    def __init__(
        self,
        comm: Comm,
        buffers: BufferKeeper,
        state: StepState,
        models: Sequence[nn.Module],
        warn: Callable[[str], None],
    ) -> None:
        """None lives as far as is known; `warn` is told what keeps a run from being the same as one process."""
        self._comm, self._buffers, self._state, self._models, self._warn = comm, buffers, state, models, warn
        self._live: list[Key] = []
        self._next: list[Key] | None = None
        """Those of the open step, which count once it is committed."""
        self._asked = False
        """Whether all workers know that some buffer lives of which they have not agreed yet."""
        self._outside: set[Key] = set()
        """Changed after the news of a step were sent, or by code behind it."""
        self._tried: set[Key] = set()
        self._calls: dict[int, list[Call]] = {}
        self._hooks: list[Any] = []

    def names(self) -> list[str]:
        """Those that live, by model, module and name."""
        names = {key: name for name, key in self._named().items()}
        return [names[key] for key in self._live]

    def take_up(self, names: Sequence[str]) -> None:
        """Enter a run in which these live; the other workers have tried already what they follow."""
        named = self._named()
        self._live = [named[name] for name in names]
        self._tried.update(self._live)

    def _named(self) -> dict[str, Key]:
        modules = [
            (f"{number}.{place}", module)
            for number, model in enumerate(self._models)
            for place, module in model.named_modules()
        ]
        return {f"{place}.{name}": (module, name) for place, module in modules for name in module._buffers}

    def begin(self) -> None:
        """A step begins, or begins again; called before its buffers are remembered."""
        self._outside |= self._buffers.moved()
        self._next = None
        self._calls.clear()

    def news(self) -> bool:
        """Whether a buffer changed in this step that did not live so far."""
        if self._asked or self._comm.size == 1:  # those are asked for in this step
            return False
        return bool((self._buffers.changed() | self._outside).difference(self._live))

    def agree(self, samples: int, *, exact: bool) -> None:
        """Make the living buffers those of the global batch; the step is void if that fails.

        `samples` is what this worker has seen in the step; `exact` says that a mean over samples is what they follow.
        """
        if not (self._live or self._asked):
            return
        live = self._live
        if self._asked:
            keys = self._buffers.keys()
            changed = self._buffers.changed() | self._outside
            masks = self._comm.gather(torch.tensor([key in changed for key in keys], dtype=torch.uint8)).wait()
            if masks is None:
                self._state.void = True
                return
            lives = torch.stack(masks).any(0).tolist()
            live = [key for key, one in zip(keys, lives, strict=True) if one or key in self._live]
        own = [_wide(self._buffers.at(key)) for key in live]
        parts = self._comm.gather(torch.cat([torch.tensor([float(samples)], dtype=torch.float64), *own])).wait()
        if parts is None:
            self._state.void = True
            return
        table = torch.stack(parts)
        self._next = live
        self._settle(live, table[:, 0], torch.split(table[:, 1:], [len(one) for one in own], dim=1), exact)

    def commit(self, news: float) -> bool:
        """The step's numbers are agreed on; False if it has to be done again, because buffers live on some worker."""
        if self._comm.size == 1:
            return True
        if news:
            self._asked = True
            self._watch()
            return False
        if self._next is not None:
            self._live, self._next, self._asked = self._next, None, False
        self._buffers.end_step()
        self._outside = self._buffers.changed().difference(self._live)  # after the news of this step were sent
        return True

    def _settle(self, live: Sequence[Key], weights: Tensor, values: Sequence[Tensor], exact: bool) -> None:
        """Write what is agreed on into the buffers; `values`: each buffer's numbers on each worker."""
        judge = int(weights.argmax())
        suspects = []
        for key, table in zip(live, values, strict=True):
            seen = table[weights > 0]
            if len(seen) == 0:
                continue
            if not torch.equal(seen, seen[:1].expand_as(seen)):
                suspects.append(key)
            self._write(key, _merged(seen, weights[weights > 0], self._buffers.at(key), self._buffers.before(key)))
        suspects = [key for key in suspects if key not in self._tried]
        if not suspects or (weights[judge] < 2 and self._hooks):  # one sample has no parts: tried with a later step
            return
        self._tried.update(suspects)
        calls = dict(self._calls)
        self._unwatch()
        for key in suspects if self._comm.rank == judge else ():
            inside = key not in self._outside
            if not (exact and inside and self._follows(key, calls.get(id(key[0]), []))):
                how = "by something else than a mean over samples" if inside else "outside of the forward pass"
                self._warn(self._told(key, how))

    @torch.no_grad()
    def _write(self, key: Key, value: Tensor) -> None:
        buffer = self._buffers.at(key)
        narrow = value.to(buffer.device, buffer.dtype if not buffer.is_complex() else torch.float64)
        wanted = (
            torch.view_as_complex(narrow.view(*buffer.shape, 2)).to(buffer.dtype) if buffer.is_complex() else narrow
        )
        if not torch.equal(wanted.view(buffer.shape), buffer):
            buffer.copy_(wanted.view(buffer.shape))

    def _follows(self, key: Key, calls: Sequence[Call]) -> bool:
        """Whether the buffer of two parts of this worker's share adds up to that of the whole."""
        taken = self._buffers.snapshot()
        void, self._state.void = self._state.void, True  # no other worker computes this: layers must not ask for them
        try:
            return follows_its_rows(*key, calls, self._buffers.bring_back)
        finally:
            self._state.void = void
            self._buffers.bring_back(taken)

    def _told(self, key: Key, how: str) -> str:
        module, name = key
        places = {id(one): place for model in self._models for place, one in model.named_modules()}
        whole = ".".join(filter(None, (places.get(id(module), ""), name)))
        return (
            f"the buffer {whole} of {type(module).__name__} changes with each worker's share, {how}: the workers go on "
            "with the mean of theirs, weighted by samples. To have it as one process has it, compute it in the forward "
            "pass from what cordee.gather gives"
        )

    def _watch(self) -> None:
        """Note how the modules whose buffers changed are called, for the step that is done again."""
        self._unwatch()
        for module in {key[0] for key in self._buffers.changed().difference(self._tried)}:
            hook = module.register_forward_pre_hook(self._note, with_kwargs=True)
            self._hooks.append(hook)

    def _note(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if module.training:
            self._calls.setdefault(id(module), []).append(map_tensors(Tensor.detach, (args, kwargs)))

    def _unwatch(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._calls.clear()


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
