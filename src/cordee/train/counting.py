"""What forward passes keep for their backward pass, by the memory that autograd keeps of two and of four samples.

Of a pipeline it is counted stage by stage, and added up as the rows of its table hold micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode

from cordee.diagnose.room import Kept, Sizes, share_of
from cordee.feed.order import Order
from cordee.group.sliced import local_of
from cordee.split.pipeline import table
from cordee.split.recompute import KEPT, keeping_all, pieces
from cordee.split.record import unchanged
from cordee.split.schedules.costs import Costs, StageCosts
from cordee.split.schedules.simulate import simulate
from cordee.split.shard import reshard
from cordee.split.staged import Staged
from cordee.train.cutting import first_batch
from cordee.train.job import Job
from cordee.train.offload import leaving_activations
from cordee.train.stepper import Stepper

COUNTED = (2, 4)
"""Samples of the two passes."""
TOO_FEW = (RuntimeError, ValueError, TypeError, IndexError)
"""What a pass of a few samples may raise where the job's batches are right: the first step will tell."""


def with_activations(sizes: Sizes, job: Job, order: Order, model: nn.Module, stepper: Stepper) -> Sizes:
    """The same with activations, of a model as it is placed; all workers of a replica call this together."""
    counts, run = _few(job, order, model, stepper)
    try:
        with _counting(model):
            kept, planned = _count(model, run, stepper.plan.recompute, counts)
    except TOO_FEW:
        return sizes
    return replace(sizes, kept=kept, planned=planned, blocks=pieces(model))


def with_stages(sizes: Sizes, job: Job, order: Order, staged: Staged, stepper: Stepper, shares: int) -> Sizes:
    """The same with what a worker with these stages keeps at the most; all workers that hold them call this together.

    No other stage is asked: a stage is given zeros in the shapes of what it would receive.
    """
    plan, (counts, run) = stepper.plan, _few(job, order, staged.model, stepper)
    samples = share_of(order.batch, plan, shares)
    steps = table(plan.schedule, plan.pipeline, min(plan.micros, -(-order.batch // shares)))
    blocks = max(1, pieces(staged.model) // len(staged.stages))
    held, again = [0] * len(staged.stages), [0] * len(staged.stages)
    try:
        with _counting(staged.model):
            for stage in staged.mine:
                kept, planned = _count(staged.model, partial(_pass, staged, stage, run), plan.recompute, counts)
                held[stage] = planned.at(samples)
                again[stage] = max(0, kept.at(samples) - held[stage]) // blocks
    except TOO_FEW:
        return sizes
    timeline = simulate(steps, Costs(tuple(StageCosts(1, 1, 1, held_bytes=size) for size in held)))
    peaks = [size + max(again[rank :: steps.ranks]) for rank, size in enumerate(timeline.held_bytes)]
    rank = max(range(steps.ranks), key=peaks.__getitem__)
    return replace(sizes, held=peaks[rank], micros=timeline.held[rank])


def _few(job: Job, order: Order, model: nn.Module, stepper: Stepper) -> tuple[list[int], Callable[[int], Tensor]]:
    """Two numbers of samples, and what computes their loss by the place of the number."""
    counts = [min(count, len(order.ids(0, 0))) for count in COUNTED]
    batches = [first_batch(job, order, stepper.device, count) for count in counts]

    def run(place: int) -> Tensor:
        with stepper.precision.autocast():
            return job.compute(model, batches[place])[0]

    return counts, run


def _pass(staged: Staged, stage: int, run: Callable[[int], Tensor], place: int) -> Any:
    """The forward pass of one stage."""
    received = [shape.placeholder(written=True) for shape, _ in staged.specs(stage, partial(run, place))]
    return staged.forward(stage, partial(run, place), received, draw=0)


def _line(counts: list[int], sizes: list[int]) -> Kept:
    """Through two measured sizes."""
    per_sample = max(0.0, (sizes[1] - sizes[0]) / (counts[1] - counts[0] or 1))
    return Kept(per_sample, max(0.0, sizes[0] - per_sample * counts[0]))


@contextmanager
def _counting(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, as BatchNorm would ask the other workers; the model is left as it was."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with unchanged(model), leaving_activations(model), torch.enable_grad():
            yield
    finally:
        reshard(model)  # no backward pass follows
        for module, training in modes.items():
            module.training = training


def _count(model: nn.Module, run: Callable[[int], Any], how: str, counts: list[int]) -> tuple[Kept, Kept]:
    """Bytes kept by passes: all of them, and those under the plan."""
    products = [_Products(counting=how == "selective") for _ in counts]
    plain = []
    for place, counter in enumerate(products):
        with keeping_all(), counter:
            plain.append(saved_bytes(model, partial(run, place)))
    if how == "none":
        return _line(counts, plain), _line(counts, plain)
    planned = [saved_bytes(model, partial(run, place)) + more.bytes for place, more in enumerate(products)]
    return _line(counts, plain), _line(counts, planned)


def saved_bytes(model: nn.Module, run: Callable[[], Any]) -> int:
    """What autograd keeps of a pass for its backward pass, beside parameters and buffers."""
    own = {_memory(one) for one in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def see(module: nn.Module, *_: object) -> None:  # parameters that are sharded are whole while a layer is called
        own.update(_memory(one) for one in module.parameters(recurse=False))

    def pack(tensor: Tensor) -> Tensor:
        kept[_memory(tensor)] = local_of(tensor).untyped_storage().nbytes()
        return tensor

    seeing = register_module_forward_hook(see)
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = run()  # alive until all is counted: no memory is used twice
    finally:
        seeing.remove()
    del result
    return sum(size for memory, size in kept.items() if memory not in own)


def _memory(tensor: Tensor) -> int:
    """Which memory a tensor lies in, also after that was let go."""
    return int(local_of(tensor).untyped_storage()._cdata)


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of what `recompute=selective` keeps."""

    def __init__(self, *, counting: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes, self._counting = 0, counting

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self._counting and func.overloadpacket.__name__ in KEPT:
            made = result if isinstance(result, tuple | list) else (result,)
            self.bytes += sum(one.nbytes for one in made if isinstance(one, Tensor))
        return result
