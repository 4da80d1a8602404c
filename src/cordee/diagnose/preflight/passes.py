"""One pass of the preflight: forward and backward from the same beginning each time, and no trace of it afterwards.

Every pass begins with the same buffers, modes, attributes and random states. BatchNorm computes by its running
statistics, because over the global batch it is exact; dropout draws as in training.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

from cordee.core.errors import CordeeError, ModelError
from cordee.diagnose.misfit import explain_misfit
from cordee.diagnose.preflight.draws import ReplayFailed, Slice
from cordee.diagnose.preflight.holdings import Holdings, seed_generator, set_state, state_of
from cordee.diagnose.preflight.samples import Samples
from cordee.diagnose.preflight.sketch import Sketch
from cordee.diagnose.preflight.watch import GLOBAL_GENERATORS, Tape, Watch
from cordee.feed.batch import Batch
from cordee.feed.source import map_tensors
from cordee.sync.batchnorm import set_aside


@dataclass(frozen=True)
class Subject:
    """What is checked: how a loss is computed, and what of the user's takes part in it."""

    compute: Callable[[Batch], tuple[Any, Any]]
    """Loss and output of a batch."""
    models: Sequence[nn.Module]
    functions: Sequence[Any]
    """The user's own, whose state a pass may change."""
    weigh: Callable[[Batch], Any] | None = None
    """What a batch weighs; None: its samples."""
    try_output: Callable[[Any, Batch], None] | None = None
    """Raises if the output for a batch is not what metrics need."""
    count_gathers: Callable[[], int] = lambda: 0
    """How often this process has called `cordee.gather`, which lies in a higher row of folders."""


@dataclass
class Pass:
    """The result of a pass."""

    vector: Tensor
    """What is compared: the loss, then the projections of its gradient. In float64, on the CPU."""
    size: float
    """Of the gradient, in the unit of its projections."""
    places: Sequence[int]
    """Of its samples in the pool."""
    weight: float
    tape: Tape
    buffers: dict[str, Tensor] = field(default_factory=dict)
    """What the pass left in buffers that it changed."""
    changed: list[str] = field(default_factory=list)
    """Other state that it changed."""
    ends: list[str] = field(default_factory=list)
    """Where each generator stands after it."""
    gathers: bool = False
    output: Any = None

    @property
    def loss(self) -> float:
        """The loss of the batch."""
        return float(self.vector[0])

    @property
    def finite(self) -> bool:
        """Whether it can be compared."""
        return bool(self.vector.isfinite().all()) and abs(self.size) < float("inf")


class Passes:
    """Runs passes over a subject."""

    samples: Samples
    """The pool that batches are made of; it is read in here, so that generators stand afterwards where they stood."""

    def __init__(self, subject: Subject, stack: contextlib.ExitStack) -> None:
        """Set everything up that holds for all passes; closing `stack` puts everything back."""
        self.subject = subject
        self._plain_attention = False
        """Whether attention runs by the kernel whose dropout is an operator of its own, which shows what it draws."""
        models = subject.models
        modules = [module for model in models for module in model.modules()]
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # training warns of the same, once
        stack.enter_context(exact_kernels())
        if "torch._dynamo" in sys.modules:  # what the user compiled runs as written
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for module in modules:
            stack.callback(setattr, module, "training", module.training)
        for model in models:
            stack.enter_context(set_aside(model))
            model.train()
        for module in modules:
            if isinstance(module, _BatchNorm):
                module.training = False
            if isinstance(module, nn.RNNBase) and module.dropout:  # cuDNN does not show what it draws
                stack.callback(setattr, module, "dropout", module.dropout)
                module.dropout = 0.0
        functions = [one for one in (*subject.functions, subject.weigh) if one is not None]
        self._models = [(f"model {place}" if place else "", model) for place, model in enumerate(models)]
        self._holdings = Holdings([*self._models, *((getattr(one, "__name__", "self"), one) for one in functions)])
        self._generators = [torch.default_generator, *(torch.cuda.default_generators if uses_gpus() else ())]
        self._generators += [*GLOBAL_GENERATORS.values(), *self._holdings.generators]
        for generator in self._generators:
            stack.callback(set_state, generator, state_of(generator))
        stack.callback(self._holdings.bring_back)
        self._sketch = Sketch(list({id(one): one for model in models for one in model.parameters()}.values()), stack)

    def run_first(self, places: Sequence[int]) -> Pass:
        """One pass that shows what the objective does: its draws, its losses, its state and its output."""
        first = self.run(places, keep_output=True)
        if first.tape.fused and not self._plain_attention:
            self._plain_attention = True
            return self.run_first(places)
        return first

    def run(
        self,
        places: Sequence[int],
        *,
        seed: int = 0,
        replay: Slice | None = None,
        go_on: bool = False,
        keep_output: bool = False,
    ) -> Pass:
        """One pass over the samples at these places; with `go_on` it begins with the state that the last one left.

        Buffers are those of the beginning in any case. Raises `ReplayFailed`.
        """
        batch = self.samples.batch(places)
        self._holdings.bring_back(self._buffers() if go_on else None)
        for place, generator in enumerate(self._generators):
            seed_generator(generator, seed + place)
        self._sketch.begin()
        watch = Watch(self._holdings.before_write, replay)
        tape, before, gathers = watch.tape, self._states(), self.subject.count_gathers()
        attention: Any = sdpa_kernel(SDPBackend.MATH) if self._plain_attention else contextlib.nullcontext()
        with attention, watch.watching(seed):
            loss, output = self._compute(batch, replaying=replay is not None)
        after = self._states()
        moved = [one for one, *states in zip(self._generators, before, after, strict=True) if states[0] != states[1]]
        tape.unseen |= any(not isinstance(one, torch.Generator) and id(one) not in tape.drawn_from for one in moved)
        tape.epsilon = max(tape.epsilon, torch.finfo(loss.dtype).eps)
        projections, size = self._sketch.result()
        changed, buffers = set(self._holdings.changed()), self._buffers()
        weigh = self.subject.weigh
        return Pass(
            vector=torch.cat([loss.detach().reshape(1).to("cpu", torch.float64), projections]),
            size=size,
            places=places,
            weight=float(len(batch) if weigh is None else weigh(batch)),
            tape=tape,
            buffers={name: tensor.detach().clone() for name, tensor in buffers.items() if name in changed},
            changed=sorted(changed - buffers.keys()),
            ends=after,
            gathers=self.subject.count_gathers() != gathers,
            output=map_tensors(Tensor.detach, output) if keep_output else None,
        )

    def _compute(self, batch: Batch, *, replaying: bool) -> tuple[Tensor, Any]:
        """Loss and output, and gradients; errors are explained in the user's words."""
        try:
            with torch.enable_grad():
                loss, output = self.subject.compute(batch)
                _check_loss(loss)
                loss.backward()
        except (CordeeError, ReplayFailed):
            raise
        except Exception as error:
            if replaying:  # an index that was drawn for the whole, say
                raise ReplayFailed from error
            raise explain_misfit(error, self.subject.models[0], batch) from error
        return loss, output

    def _buffers(self) -> dict[str, Tensor]:
        return {name: tensor for prefix, model in self._models for name, tensor in model.named_buffers(prefix)}

    def _states(self) -> list[str]:
        states = [state_of(one) for one in self._generators]
        return [repr(one.tolist() if isinstance(one, Tensor) else one) for one in states]


def uses_gpus() -> bool:
    """Whether this process has used a GPU."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def exact_kernels() -> Iterator[None]:
    """On GPUs: no TF32, and the same algorithm for the same shape."""

    def of(place: Any, name: str, value: Any) -> tuple[Callable[[], Any], Callable[[Any], None], Any]:
        return partial(getattr, place, name), partial(setattr, place, name), value

    cudnn: Any = torch.backends.cudnn
    settings = [
        *(of(cudnn, "benchmark", False), of(cudnn, "deterministic", True), of(cudnn, "allow_tf32", False)),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"),
        # The newer names last: setting one of the older sets these too.
        *(of(one, "fp32_precision", "ieee") for one in (cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul)),
    ]
    before = []
    for read, write, value in settings if uses_gpus() else ():
        with contextlib.suppress(RuntimeError):  # after a user's mix of older and newer names
            before.append((write, read(), value))
    try:
        for write, _, value in before:
            write(value)
        yield
    finally:
        for write, value, _ in before:
            write(value)


def _check_loss(loss: Any) -> None:
    """Refuse a loss that is not one number, or that no parameter has a part in."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise ModelError(f"the loss of a batch is {shape}: expected one number, the mean over the batch")
    if not loss.requires_grad:
        raise ModelError("the loss does not depend on any parameter of the model: is its output detached?")
