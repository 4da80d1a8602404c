"""Whether a plan fits into memory: sizes of a job's model measured before the first step, and told beside what is free.

Activations are counted in forward passes of two and of four samples, by the memory that autograd keeps for the backward
pass. They are counted where memory could be short: for large models on GPUs or where the rest takes a good part of what
is free, and where the plan recomputes or offloads. Other starts are not delayed by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from cordee.core.errors import PlanError
from cordee.core.events import MemoryEvent, WarningEvent
from cordee.core.machine import available_memory
from cordee.core.plan import Plan
from cordee.core.world import World
from cordee.diagnose.room import Kept, Needs, Room, Sizes, estimate, judge
from cordee.feed.order import Order
from cordee.group.sliced import is_sliced, local_of
from cordee.group.team import Team
from cordee.split.recompute import KEPT, keeping_all, pieces
from cordee.split.record import unchanged
from cordee.split.shard import find_units, gathered_bytes, parameters_of, reshard
from cordee.sync.stepping import is_torchs_own
from cordee.train.cutting import first_batch
from cordee.train.job import Job
from cordee.train.offload import leaving_activations
from cordee.train.stepper import Stepper

LARGE = 16 * 2**20
"""Bytes of a model from which on workers look whether memory could be short; so no other start waits for a vote."""
NOTABLE = 0.1
"""Of what is free: from here on activations are counted on a CPU too."""
COUNTED = (2, 4)
"""Samples of the two passes."""


def check_fits(job: Job, stepper: Stepper, order: Order, model: nn.Module, optimizer: Optimizer) -> None:
    """Tell what this worker needs; raise if the plan cannot fit, warn if it may not. Before the first step; local."""
    plan, room = stepper.plan, room_of(model, stepper.device)
    sizes = replace(sizes_of(model, optimizer), gathered=_gathered(stepper, model))
    short = room.on_gpu or plan.recompute != "none" or sizes.parameters + sizes.gradients > NOTABLE * room.device
    large = sum(one.numel() * one.element_size() for one in model.parameters()) >= LARGE
    spares = (plan.recompute, plan.offload) != ("none", "none")
    asks = not stepper.split.partly and (large or spares)  # the same on all workers
    if asks and _any(stepper.team, short):  # its passes may ask other workers: all do them, or none
        sizes = with_activations(sizes, job, order, model, stepper)
    needs = estimate(sizes, plan, batch=order.batch, replicas=stepper.team.shares)
    stepper.team.channel.post(event_of(stepper.team.channel.worker, needs, room))
    verdict = judge(needs, room, plan)
    if verdict.refusal:
        raise PlanError(verdict.refusal)
    if verdict.warning:
        stepper.reporter.tell(WarningEvent(verdict.warning))


def _any(team: Team, wish: bool) -> bool:
    """Whether a worker wishes it; every one of them calls this."""
    while True:
        votes = torch.tensor([float(wish)])
        if team.settle([team.world.sum(votes)], [votes]):
            return float(votes) > 0


def event_of(worker: int, needs: Needs, room: Room) -> MemoryEvent:
    """The record of an estimate."""
    parts = (needs.parameters, needs.gradients, needs.state, needs.buckets, needs.activations)
    return MemoryEvent(worker, *parts, needs.total, needs.host, room.device, room.host, needs.samples, needs.gathered)


def _gathered(stepper: Stepper, model: nn.Module) -> int:
    """What is whole for a moment of a model whose state lies over workers; 0 of any other."""
    sharding, plan = stepper.placing.sharding, stepper.plan
    if sharding is None or model not in sharding.of:
        return 0
    held = {name: one for name, one in parameters_of(model).items() if is_sliced(one, "shard")}
    whole = {
        name: one.numel() * one.element_size() // (plan.tensor if is_sliced(one, "slice") else 1)
        for name, one in held.items()
    }
    return gathered_bytes(whole, sharding.of[model].units, plan.shard, micros=plan.accumulate, staged=plan.pipeline > 1)


def estimate_of_job(job: Job, plan: Plan, workers: int) -> tuple[Needs, Room]:
    """What each of so many workers of this host would need, found by this process alone, on the CPU.

    A cut of the model counts as if it were even, and activations as those of the whole.
    """
    torch.manual_seed(job.seed)
    stepper = Stepper(plan=Plan(precision=plan.precision, recompute=plan.recompute))
    model, order = stepper.place(job.make_model()), job.order(job.resolve(workers))
    sizes = with_activations(sizes_of(model, job.make_optimizer(model)), job, order, model, stepper)
    stages, shards, slices = plan.shape(workers)
    over = plan.shape(workers).size
    whole = {name: one.nbytes // (stages * slices) for name, one in model.named_parameters()}
    how: dict[str, Any] = {"micros": plan.accumulate, "staged": stages > 1}
    gathered = gathered_bytes(whole, find_units(model), plan.shard, **how) if shards > 1 else 0
    sizes = replace(
        sizes,
        parameters=sizes.parameters // over,
        gradients=sizes.gradients // over,
        state=None if sizes.state is None else sizes.state // over,
        gathered=gathered,
    )
    replicas = workers // (stages * slices)
    return estimate(sizes, plan, batch=order.batch, replicas=replicas), room_of(model, "cpu", workers)


# ------------------------------------------------------------- what there is


def room_of(model: nn.Module, device: str, workers: int | None = None) -> Room:
    """What this worker may take: its part of what is free, and what its model holds there already."""
    beside = World.from_env().local_size if workers is None else workers
    kind = torch.device(device).type
    shaped = (local_of(one) for one in model.parameters() if not is_lazy(one))
    held = sum(one.nbytes for one in shaped if one.device.type == kind)
    host = available_memory() // beside
    if device == "cpu":
        return Room(host + held + psutil.swap_memory().free // beside, host)
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    sharing = math.ceil(beside / torch.cuda.device_count())
    return Room(free // sharing + unused + held, host, on_gpu=True)


# ------------------------------------------------------------- what is needed


def sizes_of(model: nn.Module, optimizer: Optimizer) -> Sizes:
    """Without activations."""
    parameters = sum(local_of(one).nbytes for one in (*model.parameters(), *model.buffers()))
    trained = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
    return Sizes(parameters, sum(local_of(one).nbytes for one in trained), state_bytes(optimizer))


def state_bytes(optimizer: Optimizer) -> int | None:
    """What the optimizer will keep, by a step of one of its kind over a tiny parameter; None: it cannot be told so."""
    if not is_torchs_own(optimizer):
        return None
    total = 0.0
    for group in optimizer.param_groups:
        trained = [local_of(one) for one in group["params"] if one.requires_grad]
        if not trained:
            continue
        tiny = nn.Parameter(torch.zeros(8, 8, dtype=trained[0].dtype))
        tiny.grad = torch.zeros_like(tiny)
        ways = {"fused": None, "foreach": None, "capturable": False}
        settings = {name: ways.get(name, value) for name, value in group.items() if name != "params"}
        kind: Any = type(optimizer)
        same = kind([{**settings, "params": [tiny]}])
        try:
            same.step()
        except (RuntimeError, TypeError):  # it takes sparse gradients alone, or needs a closure
            return None
        tensors = [one for one in same.state[tiny].values() if isinstance(one, Tensor) and one.shape == tiny.shape]
        total += sum(one.nbytes for one in tensors) / tiny.nbytes * sum(one.nbytes for one in trained)
    return round(total)


def with_activations(sizes: Sizes, job: Job, order: Order, model: nn.Module, stepper: Stepper) -> Sizes:
    """The same with activations, of a model as it is placed; all workers of a replica call this together."""
    counts = [min(count, len(order.ids(0, 0))) for count in COUNTED]
    batches = [first_batch(job, order, stepper.device, count) for count in counts]

    def run(place: int) -> Tensor:
        with stepper.precision.autocast():
            return job.compute(model, batches[place])[0]

    try:
        plain, planned, blocks = _count(model, run, stepper.plan.recompute)
    except (RuntimeError, ValueError, TypeError, IndexError):  # a few samples may be too few; the first step will tell
        return sizes
    return replace(sizes, kept=_line(counts, plain), planned=_line(counts, planned), blocks=blocks)


def _line(counts: list[int], sizes: list[int]) -> Kept:
    """Through two measured sizes."""
    per_sample = max(0.0, (sizes[1] - sizes[0]) / (counts[1] - counts[0] or 1))
    return Kept(per_sample, max(0.0, sizes[0] - per_sample * counts[0]))


def _count(model: nn.Module, run: Callable[[int], Tensor], how: str) -> tuple[list[int], list[int], int]:
    """Bytes kept by two passes: all of them, those under the plan, and how many blocks there are."""
    modes = {module: module.training for module in model.modules()}
    model.eval()  # BatchNorm would ask the other workers
    try:
        with unchanged(model), leaving_activations(model), torch.enable_grad():
            products = [_Products(counting=how == "selective") for _ in range(2)]
            plain = []
            for place, counter in enumerate(products):
                with keeping_all(), counter:
                    plain.append(saved_bytes(model, partial(run, place)))
            planned = [saved_bytes(model, partial(run, place)) for place in range(2)] if how != "none" else plain
            return plain, [one + more.bytes for one, more in zip(planned, products, strict=True)], pieces(model)
    finally:
        reshard(model)  # no backward pass follows
        for module, training in modes.items():
            module.training = training


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
