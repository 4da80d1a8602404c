"""Whether a plan fits into memory: sizes of a job's model measured before the first step, and told beside what is free.

Activations (see `counting.py`) are counted where memory could be short: for large models on GPUs or where the rest
takes a good part of what is free, and where the plan recomputes or offloads. Other starts are not delayed by it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from cordee.core.errors import PlanError
from cordee.core.events import MemoryEvent, WarningEvent
from cordee.core.machine import available_memory
from cordee.core.plan import Plan
from cordee.core.world import World
from cordee.diagnose.preflight.check import materialise
from cordee.diagnose.room import Needs, Room, Sizes, estimate, judge
from cordee.feed.order import Order
from cordee.group.sliced import is_sliced, local_of
from cordee.group.team import Team
from cordee.split.pipeline import Pipeline
from cordee.split.shard import find_units, gathered_bytes, parameters_of
from cordee.split.staged import Staged
from cordee.split.stages import Stages
from cordee.sync.stepping import is_torchs_own
from cordee.train.checks import subject_of
from cordee.train.counting import with_activations, with_stages
from cordee.train.job import Job
from cordee.train.offload import spare_memory
from cordee.train.stepper import Stepper

LARGE = 16 * 2**20
"""Bytes of a model from which on workers look whether memory could be short; so no other start waits for a vote."""
NOTABLE = 0.1
"""Of what is free: from here on activations are counted on a CPU too."""


def check_fits(job: Job, stepper: Stepper, order: Order, model: nn.Module, optimizer: Optimizer) -> None:
    """Tell what this worker needs; raise if the plan cannot fit, warn if it may not. Before the first step; local."""
    plan, room = stepper.plan, room_of(model, stepper.device)
    sizes = replace(sizes_of(model, optimizer), gathered=_gathered(stepper, model))
    short = room.on_gpu or plan.recompute != "none" or sizes.parameters + sizes.gradients > NOTABLE * room.device
    split, shares = stepper.split, stepper.team.shares
    stages = split.stages if isinstance(split, Pipeline) else None
    each = [one.numel() for one in model.parameters()] if stages is None else [one.parameters for one in stages.units]
    spares = (plan.recompute, plan.offload) != ("none", "none")
    asks = spares or 4 * sum(each) >= LARGE  # the same on all workers
    if asks and _any(stepper.team, short):  # its passes may ask other workers: all do them, or none
        if isinstance(split, Pipeline):
            split.gather()
            sizes = with_stages(sizes, job, order, split.staged, stepper, shares)
        else:
            sizes = with_activations(sizes, job, order, model, stepper)
    needs = estimate(sizes, plan, batch=order.batch, replicas=shares)
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


def estimate_of_job(
    job: Job, plan: Plan, workers: int, stages: Stages | None = None, device: str = "cpu"
) -> tuple[Needs, Room]:
    """What each of so many workers of this host would need, found by this process alone, on the CPU.

    `device` is what they would have. A cut of the model counts as if it were even. Activations are those of the whole,
    or under a pipeline those of the worker that keeps most of them, where its `stages` are known.
    """
    torch.manual_seed(job.seed)
    stepper = Stepper(plan=replace(plan, offload="none", compile=False))
    model, order = job.make_model(), job.order(job.resolve(workers))
    materialise(subject_of(job, model), job.data.train, order, "cpu")
    parts = plan.shape(workers)
    sizes, shares = sizes_of(model, job.make_optimizer(model)), workers // (parts.stages * parts.slices)
    whole = {name: one.nbytes // (parts.stages * parts.slices) for name, one in model.named_parameters()}
    how: dict[str, Any] = {"micros": plan.accumulate, "staged": parts.stages > 1}
    gathered = gathered_bytes(whole, find_units(model), plan.shard, **how) if parts.shards > 1 else 0
    room = room_of(model, device, workers)
    spare_memory(model, stepper.plan, "cpu", stages.gates if stages else ())
    if stages is not None:
        staged = Staged(model, stages, range(len(stages)))
        sizes = with_stages(sizes, job, order, staged, stepper, shares)
    elif plan.pipeline == 1:
        sizes = with_activations(sizes, job, order, model, stepper)
    sizes = replace(
        sizes,
        parameters=sizes.parameters // parts.size,
        gradients=sizes.gradients // parts.size,
        state=None if sizes.state is None else sizes.state // parts.size,
        gathered=gathered,
    )
    return estimate(sizes, plan, batch=order.batch, replicas=shares), room


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
