"""Which layers of a job's model lie on which stage of a pipeline: decided by one worker, and the same on all."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from cordee.core.errors import ModelError, PlanError
from cordee.core.plan import Plan
from cordee.core.words import plural
from cordee.diagnose.statistical import refuse_batchnorm
from cordee.feed.order import Order
from cordee.split.pipeline import Staging, stages_of
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


def _number_of_stages(job: Job, plan: Plan) -> int:
    number = stages_of(plan.schedule, plan.pipeline)
    if job.stages is not None and len(job.stages) != number:
        raise PlanError(
            f"stages names {plural(len(job.stages), 'layer')}, but pipeline={plan.pipeline} with schedule="
            f"{plan.schedule} has {number} stages: name the first layer of each, or leave stages out"
        )
    return number


def plan_staging(job: Job, model: nn.Module, order: Order, stepper: Stepper) -> Staging:
    """Cut the model into the stages of the plan, by costs that one worker measures; all workers call this."""
    plan, team = stepper.plan, stepper.team
    number, micros = _number_of_stages(job, plan), plan.micro_batches or 2 * plan.pipeline
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
        measured = plan_stages(model, run, number) if team.speaks else stages
        counts = torch.tensor(measured.counts)
        team.share_from_first([counts])
        # Costs are measured, and differ between workers; all else follows from the counts.
        stages = measured if team.speaks else plan_stages(model, run, counts.tolist(), costs="parameters")
    return Staging(stages, plan.schedule, micros)
