"""Which layers of a job's model lie on which stage of a pipeline: by costs and speeds, the same on all workers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf

import torch
from torch import nn

from cordee.core.cgroup import cpu_quota
from cordee.core.errors import ModelError, PlanError
from cordee.core.plan import Plan
from cordee.core.words import plural
from cordee.core.world import World
from cordee.diagnose.statistical import refuse_batchnorm
from cordee.feed.order import Order
from cordee.group.team import Team
from cordee.split.balance import speeds_of
from cordee.split.costs import pass_ms
from cordee.split.pipeline import Staging, stages_of, table
from cordee.split.schedules.costs import Costs, StageCosts
from cordee.split.schedules.simulate import Timeline, simulate
from cordee.split.stages import Stages, plan_stages
from cordee.train.cutting import compute, first_batch, model_of_job
from cordee.train.gathering import count_calls
from cordee.train.job import Job
from cordee.train.stepper import Stepper


def stages_of_job(job: Job, plan: Plan) -> Stages:
    """Which layers of a job's model would lie on which stage, by costs that this process measures alone."""
    number = _number_of_stages(job, plan)
    model, run = model_of_job(job)
    return plan_stages(model, run, job.stages or number)


def timeline_of_job(job: Job, plan: Plan, workers: int, stages: Stages) -> Timeline:
    """How a step is forecast to go by the costs of units, of which a third is the forward pass; messages are free."""
    shares = workers // (plan.pipeline * plan.tensor)
    samples = -(-job.order(job.resolve(workers)).batch // shares)
    costs = [0.0] * len(stages)
    for place, unit in enumerate(stages.units):
        costs[stages.stage_of(place)] += unit.cost / 3
    steps = table(plan.schedule, plan.pipeline, min(plan.micros, samples))
    return simulate(steps, Costs(tuple(StageCosts(cost, cost, cost) for cost in costs)))


def _number_of_stages(job: Job, plan: Plan) -> int:
    number = stages_of(plan.schedule, plan.pipeline)
    if job.stages is not None and len(job.stages) != number:
        raise PlanError(
            f"stages names {plural(len(job.stages), 'layer')}, but pipeline={plan.pipeline} with schedule="
            f"{plan.schedule} has {number} stages: name the first layer of each, or leave stages out"
        )
    return number


def plan_staging(job: Job, model: nn.Module, order: Order, stepper: Stepper) -> Staging:
    """Cut the model into the stages of the plan; all workers call this.

    One worker measures what parts of the model cost, and every worker how fast it is.
    """
    plan, team = stepper.plan, stepper.team
    number, micros = _number_of_stages(job, plan), plan.micros
    refuse_batchnorm(model, plan, micros, team.shares)
    samples = max(2, order.batch // (micros * team.shares))
    run = partial(compute, job, model, first_batch(job, order, stepper.device, samples))
    calls = count_calls()
    stages = plan_stages(model, run, job.stages or number, costs="parameters")
    if count_calls() > calls:
        raise ModelError(
            f"the objective calls cordee.gather, which needs the whole batch at once; pipeline={plan.pipeline} "
            "computes it in micro-batches. Use a plan without pipeline"
        )
    if job.stages is None:
        speeds = torch.tensor(_measure_speeds(team, partial(pass_ms, model, run, _cores())), dtype=torch.float64)
        units = plan_stages(model, run, number).units if team.speaks else stages.units
        costs = torch.tensor([unit.cost for unit in units], dtype=torch.float64)
        team.share_from_first([costs, speeds])  # that all cut alike: logarithms may differ between hosts
        of_stages = [float(speeds[stage % plan.pipeline]) for stage in range(number)]
        stages = plan_stages(model, run, number, costs=costs.tolist(), speeds=of_stages)
    return Staging(stages, plan.schedule, micros)


def _measure_speeds(team: Team, measure: Callable[[], float]) -> list[float]:
    """How fast each rank of a pipeline is; of the workers that hold the same stage, the slowest counts.

    The workers of a host take turns, so that they do not slow each other down.
    """
    here, own = World.from_env(), 0.0
    for turn in range(here.size):
        team.world.sum(torch.zeros(1)).wait()
        own = measure() if turn == here.local_rank else own
    while True:
        times = torch.zeros(team.stages.size, team.membership.size, dtype=torch.float64)
        times[team.stages.rank, team.membership.rank] = own
        if team.settle([team.world.sum(times)], [times]):
            return speeds_of(times.max(1).values.tolist())


def _cores() -> float:
    """How many cores a quota leaves this worker beside others of its host."""
    return (cpu_quota() or inf) / World.from_env().local_size
