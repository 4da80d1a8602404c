"""Watches a loop of the user's own: a step that trains past the session trains a model of its own on every worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from cordee.core.errors import UsageError
from cordee.group.sliced import local_of

INSTEAD = "s.backward(loss) instead of loss.backward(), and s.step(optimizer) instead of optimizer.step()"
MOVED = (
    "parameters changed between s.backward() and the update that uses its gradient, as SAM changes them: by the "
    "gradient of this worker's share alone, which differs from worker to worker. Make each change of parameters an "
    "update of its own: s.step(optimizer) uses the gradient of the global batch. See the page A loop of your own, "
    "Two passes (SAM)"
)
LOOKS = 8
"""Steps at the beginning of a loop of which every gradient is looked at; a microsecond per parameter."""
LOOKS_EVERY = 32
"""Later on, one step of so many is looked at: code may begin late to do what it must not."""
MOST_NUMBERS = 65_536
"""Of a parameter that are looked at."""


class _Seal(NamedTuple):
    """A parameter as the session left it: its gradient, and how often the two have been written to."""

    gradient: int
    """Which tensor it is. Not held: in a first step it goes before the optimizer takes memory for its state."""
    written: int | None
    """Of the gradient; None where sums over GPUs write to it too."""
    changed: int | None
    """Of the parameter itself; None once another step began."""


class Guard:
    """Looks at what a step of the loop has called, and where it called nothing, at the parameters.

    A step may call nothing: a loop that evaluates, or that only looks at its data, changes no parameter.
    """

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._before: dict[int, str] | None = None
        self._gradients = False
        self._steps = 0
        self._seals: dict[int, _Seal] | None = {}
        """By parameter: those that have a gradient of ours. None: not known, as nothing was looked at."""
        self._known: set[int] = set()
        """The parameters that were looked at; an optimizer may bring others."""

    @property
    def looks(self) -> bool:
        """Whether the gradients of this step are looked at."""
        return self._steps <= LOOKS or self._steps % LOOKS_EVERY == 0

    def begin_loop(self, models: Iterable[nn.Module]) -> None:
        """A loop over batches begins with these parameters."""
        self._before = _marks(models)

    def begin_step(self) -> None:
        """A step begins."""
        self._gradients = False
        self._steps += 1
        if self._seals is not None:
            loose = {key: seal._replace(changed=None) for key, seal in self._seals.items()}
            self._seals = loose if self.looks else None

    def backward(self, parameters: Sequence[nn.Parameter], models: Iterable[nn.Module]) -> None:
        """The gradients of this step come from the session; `parameters` may have some already."""
        again, self._gradients = self._gradients, True
        self._check(parameters)
        if again and self._before is not None and self._before != _marks(models):  # not every change is counted
            raise UsageError(MOVED)

    def seal(self, parameters: Sequence[nn.Parameter], *, sent: bool) -> None:
        """The backward pass is over: only an update may use these gradients; `sent`: they are on their way to peers.

        gloo's writes to a GPU's memory count as writes: of a gradient there, only its place is known.
        """
        self._known = set(map(id, parameters))
        self._seals = {}
        for one in parameters:
            if one.grad is not None:
                written = None if sent and one.grad.is_cuda else one.grad._version
                self._seals[id(one)] = _Seal(one.grad._cdata, written, one._version)

    def step(self, optimizer: Optimizer) -> None:
        """An update is asked for."""
        if not self._gradients:
            raise UsageError(
                "step() was called for a batch without backward(): gradients that loss.backward() made are those of "
                f"this worker's share alone, and not weighted by its samples. Write {INSTEAD}"
            )
        self._before = None
        if self.looks:
            given = [one for group in optimizer.param_groups for one in group["params"]]
            self._check([one for one in given if id(one) in self._known])

    def committed(self, parameters: Iterable[nn.Parameter]) -> None:
        """An update of these parameters was made."""
        if self._seals:
            for parameter in parameters:
                self._seals.pop(id(parameter), None)

    def trained_inside(self) -> None:
        """A loop inside this step trains: that parameters change is its affair."""
        self._before = None

    def end_step(self, models: Iterable[nn.Module], *, updates: int) -> None:
        """The next batch is asked for, after so many updates."""
        if updates:
            return
        if self._gradients:
            raise UsageError(
                "s.backward() was called, but no s.step() followed before the next batch. Write s.step(optimizer) "
                "where optimizer.step() stands. To gather gradients over several batches let the plan cut a step into "
                "them: accumulate=4, for instance"
            )
        now = _marks(models)  # read only here: steps that train as they should do not pay for it
        before, self._before = self._before, now
        if before is not None and any(before.get(key, mark) != mark for key, mark in now.items()):
            raise UsageError(
                "the parameters have changed, but neither s.backward() nor s.step() was called for this batch: every "
                f"worker would train a model of its own, on its share alone. Write {INSTEAD} and zero_grad()"
            )

    def _check(self, parameters: Iterable[nn.Parameter]) -> None:
        """Raise if a gradient is not as we left it, or a parameter changed after it got one."""
        if self._seals is None:
            return
        for parameter in parameters:
            seal, gradient = self._seals.get(id(parameter)), parameter.grad
            if seal is not None and seal.changed not in (None, parameter._version):
                raise UsageError(MOVED)
            if gradient is None or (
                seal is not None and seal.gradient == gradient._cdata and seal.written in (None, gradient._version)
            ):
                continue
            if gradient.layout is not torch.strided or gradient.any():  # asked last: on a GPU it is a wait
                raise UsageError(
                    "gradients were written to by something else than s.backward(): a plain loss.backward(), or a "
                    "change between s.backward() and s.step(), such as clip_grad_norm_. They are those of this "
                    "worker's share alone: only s.step() has the gradient of the global batch. To clip, write "
                    f"s.step(optimizer, clip=1.0). For a second loss, write {INSTEAD}. To change gradients otherwise, "
                    "use optimizer.register_step_pre_hook, which sees the global ones. What an evaluation left: "
                    "zero_grad() before the loop"
                )


def _marks(models: Iterable[nn.Module]) -> dict[int, str]:
    """What tells whether parameters have changed, by their content: not every optimizer counts versions up."""
    marks = {}
    for parameter in (one for model in models for one in model.parameters()):
        if parameter.is_floating_point() or parameter.is_complex():
            numbers = local_of(parameter.detach())
            numbers = torch.view_as_real(numbers) if numbers.is_complex() else numbers
            if numbers.numel() > MOST_NUMBERS and numbers.is_contiguous():  # some of them, spread over all
                numbers = numbers.view(-1)[:: numbers.numel() // MOST_NUMBERS]
            norm = torch.linalg.vector_norm(numbers, dtype=torch.float64)
            marks[id(parameter)] = f"{numbers.sum(dtype=torch.float64).item()} {norm.item()}"
    return marks
