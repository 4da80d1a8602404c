"""One pass of the preflight: forward and backward from the same beginning each time, and no trace of it afterwards.

Every pass begins with the same buffers, modes, attributes and random states. BatchNorm computes by its running
statistics, because over the global batch it is exact; dropout draws as in training.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cordee.core.errors import CordeeError, ModelError
from cordee.feed.batch import Batch
from cordee.feed.source import digest_of, map_tensors
from cordee.sync.batchnorm import set_aside
from cordee.train.misfit import misfit
from cordee.train.preflight.draws import Draws, ReplayFailed, Slice, Tape
from cordee.train.preflight.holdings import CopyOnWrite, Holdings, seed_generator, set_state, state_of
from cordee.train.preflight.normaliser import Call
from cordee.train.preflight.sketch import Sketch
from cordee.train.preflight.surroundings import eager, exact_kernels, plain_attention, random_states_kept, uses_gpus
from cordee.train.preflight.watch import Watch

Compute = Callable[[Batch], tuple[Any, Any]]
"""Loss and output of a batch."""

GATHERING = "cordee.train.gathering"
"""The module whose `seen` counts calls of `cordee.gather` in this process."""


@dataclass
class Pass:
    """What a pass came to."""

    loss: float
    samples: int
    weight: float
    sketch: list[float]
    size: float
    """Of the gradient, in the unit of the sketch."""
    tape: Tape
    calls: list[Call]
    epsilon: float
    """Of the number format that was computed in, as far as it is not below fp32."""
    low: float
    """The coarsest epsilon of the formats below fp32 that were seen; 0 if there were none."""
    buffers: dict[str, Tensor] = field(default_factory=dict)
    """What the pass left in buffers that it changed."""
    changed: list[str] = field(default_factory=list)
    """Other state that it changed."""
    ends: str = ""
    """Where the generators stand after it."""
    gathers: bool = False
    output: Any = None

    @property
    def finite(self) -> bool:
        """Whether it can be compared."""
        return math.isfinite(self.loss) and math.isfinite(self.size) and all(map(math.isfinite, self.sketch))

    @property
    def normaliser(self) -> float | None:
        """What the losses that this pass called divide by, if all of them divide by the same."""
        totals = {call.total for call in self.calls}
        return totals.pop() if len(totals) == 1 else None


class Passes:
    """Runs passes over some models; a context manager around all of them."""

    def __init__(
        self,
        compute: Compute,
        models: Sequence[nn.Module],
        functions: Sequence[Any],
        weigh: Callable[[Batch], Any] | None,
    ) -> None:
        """`functions` are the user's, whose state is kept too."""
        self._compute, self._models, self._weigh = compute, models, weigh
        self._functions = functions
        self.plain_attention = False
        """Whether attention runs by the plain kernel, which shows what its dropout draws."""
        self.count = 0
        """Passes so far."""

    def __enter__(self) -> Passes:
        """Set everything up that holds for all passes."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")  # what goes on into training is said there, once
            stack.enter_context(random_states_kept())
            stack.enter_context(exact_kernels())
            stack.enter_context(eager())
            stack.callback(self._modes_back([(one, one.training) for model in self._models for one in model.modules()]))
            for model in self._models:
                stack.enter_context(set_aside(model))
                self._set_modes(model, stack)
            roots = [(f"model {place}" if place else "", model) for place, model in enumerate(self._models)]
            self._holdings = Holdings([*roots, *((getattr(one, "__name__", "self"), one) for one in self._functions)])
            self._writes = CopyOnWrite(self._holdings.tensors)
            states = [state_of(one) for one in self._holdings.generators]
            for generator, state in zip(self._holdings.generators, states, strict=True):
                stack.callback(set_state, generator, state)
            self._holdings.remember()
            modules = [one for model in self._models for one in model.modules() if not isinstance(one, _BatchNorm)]
            self._buffers = [(one, dict(one._buffers)) for one in modules]
            stack.callback(self._bring_back)
            parameters = {id(one): one for model in self._models for one in model.parameters()}
            self._sketch = Sketch(list(parameters.values()))
            stack.callback(self._sketch.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        """Put everything back."""
        self._stack.close()

    def run(
        self,
        batch: Batch,
        *,
        seed: int = 0,
        replay: Slice | None = None,
        go_on: bool = False,
        keep_output: bool = False,
    ) -> Pass:
        """One pass; with `go_on` it begins with the state outside of buffers that the last one left.

        Raises `ReplayFailed`.
        """
        if go_on:
            self._buffers_back()
        else:
            self._bring_back()
        self._seed(seed)
        self._sketch.begin()
        draws = Draws(replay)
        watch = Watch(draws, self._writes)
        before = [state_of(one) for one in self._holdings.generators if not isinstance(one, torch.Generator)]
        gathered = _gathered()
        attention = plain_attention() if self.plain_attention else contextlib.nullcontext()
        with draws.watching(seed), attention, watch:
            loss, output = self._computed(batch, replaying=replay is not None)
        moved = (state_of(one) for one in self._holdings.generators if not isinstance(one, torch.Generator))
        draws.tape.unseen |= any(repr(one) != repr(other) for one, other in zip(before, moved, strict=True))
        self.count += 1
        value = loss.detach()
        sketch, size = self._sketch.result()
        buffers, changed = self._changes()
        return Pass(
            loss=float(value),
            samples=len(batch),
            weight=self.weight(batch),
            sketch=sketch,
            size=size,
            tape=draws.tape,
            calls=watch.calls,
            epsilon=max(watch.epsilon, torch.finfo(value.dtype).eps),
            low=watch.low,
            buffers=buffers,
            changed=changed,
            ends=self._ends(),
            gathers=_gathered() != gathered,
            output=map_tensors(Tensor.detach, output) if keep_output else None,
        )

    def weight(self, batch: Batch) -> float:
        """What a batch weighs, by its samples or as it is declared."""
        return float(self._weigh(batch)) if self._weigh is not None else float(len(batch))

    def _computed(self, batch: Batch, *, replaying: bool) -> tuple[Tensor, Any]:
        """Loss and output, and gradients; errors are told in the user's words."""
        try:
            with torch.enable_grad():
                loss, output = self._compute(batch)
                _check_loss(loss)
                loss.backward()
        except (CordeeError, ReplayFailed):
            raise
        except Exception as error:
            if replaying:  # an index that was drawn for the whole, say
                raise ReplayFailed from error
            raise misfit(error, self._models[0], batch) from error
        return loss, output

    def _changes(self) -> tuple[dict[str, Tensor], list[str]]:
        """Buffers that the pass changed, with what they hold; and the names of other state."""
        own = {
            (f"{name}." if name else "") + key
            for model in self._models
            for name, module in model.named_modules()
            if isinstance(module, _BatchNorm)
            for key in ("running_mean", "running_var", "num_batches_tracked")
        }
        written, replaced = set(self._writes.written()), set(self._holdings.changed())
        held = {name: one for model in self._models for name, one in model.named_buffers() if name not in own}
        known = {id(tensor) for _, tensor in self._holdings.tensors}
        buffers = {name: one.detach().clone() for name, one in held.items() if name in written or id(one) not in known}
        return buffers, sorted((written | replaced) - held.keys() - own)

    def _ends(self) -> str:
        """A digest of where torch's generators stand, and those that are held; calls of others are on the tape."""
        states = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if uses_gpus() else ())]
        states += [state_of(one) for one in self._holdings.generators if isinstance(one, torch.Generator)]
        others = [state_of(one) for one in self._holdings.generators if not isinstance(one, torch.Generator)]
        return digest_of([*(one.numpy() for one in states), repr(others).encode()])

    def _bring_back(self) -> None:
        self._holdings.bring_back()
        self._writes.bring_back()

    def _buffers_back(self) -> None:
        for module, kept in self._buffers:
            module._buffers.update(kept)
        self._writes.bring_back({name for model in self._models for name, _ in model.named_buffers()})

    def _seed(self, seed: int) -> None:
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        for place, generator in enumerate(self._holdings.generators):
            seed_generator(generator, seed + place + 1)

    @staticmethod
    def _set_modes(model: nn.Module, stack: contextlib.ExitStack) -> None:
        model.train()
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.training = False
            if isinstance(module, nn.RNNBase) and module.dropout:  # cuDNN does not show what it draws
                stack.callback(setattr, module, "dropout", module.dropout)
                module.dropout = 0.0

    @staticmethod
    def _modes_back(modes: list[tuple[nn.Module, bool]]) -> Callable[[], None]:
        def put_back() -> None:
            for module, training in modes:
                module.training = training

        return put_back


def _gathered() -> int:
    return int(getattr(sys.modules.get(GATHERING), "seen", 0))


def _check_loss(loss: Any) -> None:
    """Refuse a loss that is not one number, or that no parameter has a part in."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise ModelError(f"the loss of a batch is {shape}: expected one number, the mean over the batch")
    if not loss.requires_grad:
        raise ModelError("the loss does not depend on any parameter of the model: is its output detached?")
