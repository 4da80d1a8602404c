"""How a plan lays a model over the workers of a replica: step by step, in the order in which one rests on the other."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from torch import nn

from cordee.core.plan import Plan
from cordee.diagnose.statistical import by_micro_batch, refuse_in_pieces, refuse_unstaged, warn_statistical
from cordee.group.team import Team
from cordee.split.pipeline import Pipeline, Staging
from cordee.split.seam import Split
from cordee.split.shard import Sharding
from cordee.split.tensor import TensorPlan, split_of
from cordee.sync.batchnorm import StepState, bind
from cordee.train.devices import compute_alike, lay_out
from cordee.train.offload import spare_memory


class Layout(NamedTuple):
    """How one model lies over the workers of a replica, as far as that was found for it."""

    tensor_plan: TensorPlan | None = None
    called: AbstractSet[nn.Module] | None = None
    """The modules that the model calls, where that is known: only these can be gathered when they are needed."""
    staging: Staging | None = None


WHOLE = Layout()


def _mark(model: nn.Module, marks: Mapping[str, Mapping[str, Any]]) -> None:
    """Give parameters the attributes that the user's own had, by which an optimizer's function may make groups."""
    for name, one in model.named_parameters(remove_duplicate=False):
        for attribute, value in marks.get(name, {}).items():
            if attribute not in vars(one):
                setattr(one, attribute, value)


class Placing:
    """Applies a plan to models that are the same on every worker already."""

    def __init__(self, team: Team, plan: Plan, state: StepState, device: str) -> None:
        """Nothing is placed yet."""
        self._team, self._plan, self._state, self._device = team, plan, state, device
        self.split = Split()
        """How the model that was placed last is cut."""
        self.sharding = Sharding(team, plan.shard) if team.lines.shape.shards > 1 else None
        if plan.exact:
            compute_alike()

    def place(self, model: nn.Module, layout: Layout) -> nn.Module:
        """What this worker holds of a model: norms over the global batch, tensor, recompute, stages, shard.

        Replicas come last, with the optimizer.
        """
        team, plan = self._team, self._plan
        marks = {name: dict(vars(one)) for name, one in model.named_parameters(remove_duplicate=False)}
        refuse_unstaged(plan, layout.staging)
        refuse_in_pieces(model, plan)
        lay_out(model, plan.layout)
        bind(model, plan.statistics, team.layers, self._state, compiled=plan.compile, grows=team.grows)
        if (why := by_micro_batch(model, plan)) and team.speaks:
            warn_statistical(team, plan, why)
        self.split = split_of(team, layout.tensor_plan, layout.staging)
        model = self.split.place(model)
        spare_memory(model, plan, self._device, layout.staging.stages.gates if layout.staging else ())
        self.split.keep_stages(model)
        if self.sharding is not None:
            self.sharding.place(model, layout.called)
            if isinstance(self.split, Pipeline):
                self.split.shard(plan.shard)
        _mark(model, marks)
        return model

    def begin_backward(self, *, last: bool) -> None:
        """A backward pass follows; `last`: of its step."""
        if self.sharding is not None:
            self.sharding.begin(last=last)

    def regrouped(self) -> None:
        """Workers were lost: what was gathered with them is not used any more."""
        if self.sharding is not None:
            self.sharding.reshard()
