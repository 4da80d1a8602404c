"""What makes a run statistical that its plan takes for the same as one process: known once there is a model."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from cordee.core.errors import ModelError, UsageError
from cordee.core.events import PlanEvent, WarningEvent
from cordee.core.plan import Plan
from cordee.group.team import Team
from cordee.sync.batchnorm import batchnorms


def warn_statistical(team: Team, plan: Plan, why: str) -> None:
    """Put on record that the result is near that of one process, and not the same up to rounding."""
    team.channel.post(WarningEvent(f"this run is statistical, not the same as one process: {why}"))
    team.channel.post(PlanEvent(plan.to_dict(), "statistical"))


def refuse_unstaged(plan: Plan, staging: object) -> None:
    """Refuse a pipeline where no stages were planned: in a loop of the user's own."""
    if plan.pipeline > 1 and staging is None:
        raise UsageError(
            f"pipeline={plan.pipeline} needs the loop of a job: there a step is computed in micro-batches that walk "
            "through the stages, while a loop of your own computes a batch at once. Write a cordee.Job, or use tensor= "
            "in the plan, which works with loops of your own too"
        )


def refuse_batchnorm(model: nn.Module, plan: Plan, micros: int, replicas: int) -> None:
    """Refuse statistics over the global batch where no stage sees it at once."""
    if plan.batchnorm == "exact" and (micros > 1 or replicas > 1) and any(one.training for one in batchnorms(model)):
        alone = " or, on one replica, micro_batches=1," if replicas == 1 else ""
        raise ModelError(
            f"this {type(model).__name__} has BatchNorm, and pipeline={plan.pipeline} computes a step in "
            "micro-batches, so that no layer sees the global batch at once. Set batchnorm=replica in the plan "
            f"(statistics of each micro-batch; the run is then statistical),{alone} or use another norm, such as "
            "GroupNorm"
        )


def refuse_in_pieces(model: nn.Module, plan: Plan) -> None:
    """Refuse layers that know no piece of a batch by itself, under exact=true."""
    if plan.exact and any(one.training for one in batchnorms(model)):
        raise ModelError(
            f"this {type(model).__name__} has BatchNorm, and exact=true computes a step in pieces, so that no layer "
            "sees the global batch at once. Use another norm, such as GroupNorm; set its layers to eval() if they are "
            "not to be trained; or leave exact=true out"
        )


def refuse_living(changed: Iterable[tuple[nn.Module, str]]) -> None:
    """Refuse buffers that a pass has `changed`, under exact=true."""
    for module, name in changed:
        raise ModelError(
            f"the buffer {name} of {type(module).__name__} changes in training. With exact=true a worker computes some "
            "pieces of a batch, one after the other, and what such a buffer comes to depends on which: leave "
            "exact=true out, or the buffer (track_running_stats=False, for instance)"
        )


def by_micro_batch(model: nn.Module, plan: Plan) -> str:
    """Why a model is not trained by a plan as without `accumulate`; empty if it is."""
    if plan.accumulate == 1 or not any(layer.training for layer in batchnorms(model)):
        return ""
    return (
        f"with accumulate={plan.accumulate} BatchNorm has the statistics of each micro-batch, and with accumulate=1 "
        "those of the global batch"
    )
