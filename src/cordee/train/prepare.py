"""Making a model ready to be trained by several workers."""

from __future__ import annotations

from torch import nn

from cordee.core.plan import Plan
from cordee.diagnose.statistical import by_micro_batch, warn_statistical
from cordee.group.alike import alike
from cordee.group.team import Team
from cordee.sync.batchnorm import StepState, bind
from cordee.train.agreement import agree_on, of_model, state_of
from cordee.train.devices import lay_out


def share_model(model: nn.Module, team: Team, plan: Plan) -> None:
    """Make the model the same on every worker, which all have to have been given alike; every worker calls this."""
    agree_on(team, of_model(model, plan))
    if not alike(state_of(model), team):  # made from one seed they mostly are, and slow links are spared
        team.share_from_first(state_of(model))


def fit_to_plan(model: nn.Module, team: Team, plan: Plan, state: StepState) -> None:
    """Give the model the layout and the statistics of BatchNorm that the plan asks for; local."""
    lay_out(model, plan.layout)
    bind(model, plan.statistics, team.layers, state, compiled=plan.compile, grows=team.grows)
    if (why := by_micro_batch(model, plan)) and team.speaks:
        warn_statistical(team, plan, why)
