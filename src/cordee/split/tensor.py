"""Tensor parallelism: weight matrices cut over workers, as was found or as the job's plan names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Union

import torch
from torch import Tensor, nn

from cordee.core.errors import ModelError, WorkersLost
from cordee.group.sliced import is_sliced
from cordee.group.team import Team, open_device_mesh
from cordee.split.attention import cut_attention
from cordee.split.cut import Cut
from cordee.split.layers import Meeting, cut_linear
from cordee.split.named import check
from cordee.split.pipeline import Pipeline, Staging
from cordee.split.seam import Split
from cordee.split.tokens import share_tokens
from cordee.split.vocabulary import cut_vocabulary

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

TensorPlan = Union[Mapping[str, Union[str, "ParallelStyle"]], Cut]  # noqa: UP007 - a name that is not there yet
"""For names of layers, which may hold `*`: `"column"`, `"row"`, `"vocabulary"`, `"whole"`, or a `ParallelStyle`. Or
what was found."""

NOTICE_S = 2.0
"""How long after a failed collective the coordinator may take to say that a worker was lost."""


def split_of(team: Team, tensor_plan: TensorPlan | None = None, staging: Staging | None = None) -> Split:
    """How a replica lies over the workers of this team; `tensor_plan` is the job's, or what was found."""
    sliced = TensorSlices(team, tensor_plan) if team.slices.size > 1 else Split()
    return sliced if staging is None else Pipeline(team, staging, sliced)


class TensorSlices(Split):
    """Some layers are cut; everything else is on all workers of a replica. See `Split`."""

    def __init__(self, team: Team, plan: TensorPlan | None) -> None:
        """`plan` says which layers are cut, and how."""
        self._team, self._plan = team, plan or {}

    def place(self, model: nn.Module) -> nn.Module:
        """Cut the layers that the plan names, in place."""
        slices = self._team.lines.shape.slices
        plan = self._plan
        plan, styles = (plan, {}) if isinstance(plan, Cut) else check(model, plan, slices)
        check_found(plan, model)
        torch.backends.mha.set_fastpath_enabled(False)  # it reads weights past the layers that hold them
        mesh, layers = open_device_mesh(self._team)["slice"], dict(model.named_modules())
        meetings: dict[int, Meeting] = {}
        for one in plan.layers:
            layer, meeting = layers[one.layer], meetings.setdefault(one.group, Meeting(self._team))
            if isinstance(layer, nn.MultiheadAttention):
                cut_attention(layer, meeting, mesh)
            elif one.how == "vocabulary":
                cut_vocabulary(model, layer, self._team, mesh)
            elif one.how != "style":
                cut_linear(layer, one.how, meeting, mesh, one.blocks)
        for each in plan.settings:
            setattr(layers[each.module], each.name, each.value)
        for stream in plan.streams:
            share_tokens(model, stream, self._team)
        for name in (*plan.partial, *(one for stream in plan.streams for one in stream.partial)):
            owner, _, attribute = name.rpartition(".")
            _add_up_gradient(model.get_submodule(owner), attribute, Meeting(self._team).leave)
        if styles:
            from torch.distributed.tensor.parallel import parallelize_module

            # src_data_rank=None: every worker has the whole model here, and takes its own part of it.
            model = parallelize_module(model, mesh, styles, src_data_rank=None)
        return model

    def counts(self, parameter: nn.Parameter) -> bool:
        """Slices count everywhere; what all have counts on the first slice."""
        return self._team.slices.rank == 0 or is_sliced(parameter, "slice")


def _add_up_gradient(module: nn.Module, name: str, add_up: Callable[[Tensor], Tensor]) -> None:
    """Add up the gradient of a parameter over the slices; where it is sharded, that of what is gathered for it."""
    hooked: list[Tensor] = []

    def hook(*_: object) -> None:
        parameter = getattr(module, name)
        if parameter.requires_grad and not any(parameter is one for one in hooked):
            hooked.append(parameter)
            parameter.register_hook(add_up)

    module.register_forward_pre_hook(hook)


@contextmanager
def holding_together(team: Team) -> Iterator[None]:
    """Around a training: where a worker of this replica is lost, the rest of it leaves; without a whole one, all end.

    Torch's own collectives tell of that, and a checkpoint of which a part never comes.
    """
    try:
        yield
    except (RuntimeError, WorkersLost):
        if team.sliced and team.membership.await_break(NOTICE_S):
            team.lines.leave_if_broken()
        raise


def check_found_tokens(plan: TensorPlan | None, *, sequence: bool) -> None:
    """Refuse `sequence=true` for a cut that was not tried: nothing is known of the code between its layers."""
    if sequence and not isinstance(plan, Cut):
        raise ModelError(
            "sequence=true needs a cut that is found, or named in words: which code computes with some of the tokens "
            "is tried. Leave ParallelStyles out of tensor_plan, and in a loop of your own show the model a sample, "
            "s.prepare(model, sample=x); or leave sequence=true out of the plan"
        )


def check_found(cut: Cut, model: nn.Module) -> None:
    """Refuse to start where nothing is cut: it would take several workers for what one computes."""
    if cut.layers:
        return
    why = (
        "; ".join(f"{one.layer}: {one.reason}" for one in cut.whole[:4])
        or "it has no plain linear layer (those with a parametrization, such as weight_norm, stay whole)"
    )
    raise ModelError(
        f"tensor={cut.slices} cuts linear layers over {cut.slices} workers, but of this {type(model).__name__} none "
        f"can be cut: {why}. Choose another tensor= in the plan, or name layers yourself with tensor_plan=, such as "
        'tensor_plan={"*.up": "column", "*.down": "row"}: of two linear layers after each other the first is cut by '
        "columns, the second by rows"
    )
