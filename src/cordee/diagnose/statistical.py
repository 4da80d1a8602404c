"""What makes a run statistical that its plan takes for the same as one process: known once there is a model."""

from __future__ import annotations

from torch import nn

from cordee.core.events import PlanEvent, WarningEvent
from cordee.core.plan import Plan
from cordee.group.team import Team
from cordee.sync.batchnorm import batchnorms


def warn_statistical(team: Team, plan: Plan, why: str) -> None:
    """Put on record that the result is near that of one process, and not the same up to rounding."""
    team.channel.post(WarningEvent(f"this run is statistical, not the same as one process: {why}"))
    team.channel.post(PlanEvent(plan.to_dict(), "statistical"))


def by_micro_batch(model: nn.Module, plan: Plan) -> str:
    """Why a model is not trained by a plan as without `accumulate`; empty if it is."""
    if plan.accumulate == 1 or not any(layer.training for layer in batchnorms(model)):
        return ""
    return (
        f"with accumulate={plan.accumulate} BatchNorm has the statistics of each micro-batch, and with accumulate=1 "
        "those of the global batch"
    )
