"""Which way of splitting a run has."""

from __future__ import annotations

from cordee.group.team import Team
from cordee.split.seam import Split
from cordee.split.tensor import TensorPlan, TensorSlices
from cordee.split.whole import Whole


def split_of(team: Team, tensor_plan: TensorPlan | None = None) -> Split:
    """How a replica lies over the workers of this team; `tensor_plan` is the job's."""
    return TensorSlices(team, tensor_plan) if team.sliced else Whole()
