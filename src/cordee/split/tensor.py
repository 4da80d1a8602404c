"""Tensor parallelism: weight matrices cut over workers by a plan that the user gives, on torch's DTensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Union

from torch import nn

from cordee.core.errors import ModelError
from cordee.core.words import did_you_mean
from cordee.group.team import Team
from cordee.split.seam import Split

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

TensorPlan = Mapping[str, Union[str, "ParallelStyle"]]
"""For names of layers, which may hold `*`: `"colwise"`, `"rowwise"`, or a `ParallelStyle` of torch."""

NOTICE_S = 2.0
"""How long after a failed collective the coordinator may take to say that a worker was lost."""
CUT = {"colwise": 0, "rowwise": 1}
"""Which dimension of a linear layer's weight is cut."""


def split_of(team: Team, tensor_plan: TensorPlan | None = None) -> Split:
    """How a replica lies over the workers of this team; `tensor_plan` is the job's."""
    return TensorSlices(team, tensor_plan) if team.sliced else Split()


class TensorSlices(Split):
    """Linear layers are cut; everything else is on all workers of a replica. See `Split`."""

    def __init__(self, team: Team, plan: TensorPlan | None) -> None:
        """`plan` says which layers are cut, and how."""
        self._team, self._plan = team, plan or {}

    def place(self, model: nn.Module) -> nn.Module:
        """Cut the layers that the plan names, in place."""
        cuts = check(model, self._plan, self._team.lines.shape[1])
        from torch.distributed.tensor.parallel import parallelize_module

        mesh = self._team.lines.device_mesh()["slice"]
        plan = {name: _style(how) for name, how in cuts.items()}
        # src_data_rank=None: every worker has the whole model here, and takes its own part of it.
        return parallelize_module(model, mesh, plan, src_data_rank=None)


@contextmanager
def holding_together(team: Team) -> Iterator[None]:
    """Around what runs torch's own collectives: a loss within them ends this worker, or all, as `WorkersLost`."""
    try:
        yield
    except RuntimeError:
        if team.sliced and team.membership.await_break(NOTICE_S):
            team.lines.leave_if_broken()
        raise


def check(model: nn.Module, plan: TensorPlan, slices: int) -> dict[str, str | ParallelStyle]:
    """How each layer that the plan names is cut; a plan that does not fit the model is refused."""
    cuts: dict[str, str | ParallelStyle] = {}
    layers = {name: module for name, module in model.named_modules() if name}
    if not plan:
        raise ModelError(
            f"tensor={slices} cuts the layers that the job names, but it names none. Give tensor_plan=, such as "
            'tensor_plan={"0": "colwise", "2": "rowwise"}: of two linear layers after each other the first is cut by '
            f"columns, the second by rows. The linear layers are: {', '.join(_linear(layers)) or 'none'}"
        )
    for pattern, how in plan.items():
        if isinstance(how, str) and how not in CUT:
            hint = did_you_mean(how, list(CUT), "{!r}")
            raise ModelError(f"tensor_plan[{pattern!r}]={how!r}: expected colwise, rowwise or a ParallelStyle.{hint}")
        names = [name for name in layers if fnmatchcase(name, pattern)]
        if not names:
            hint = did_you_mean(pattern, list(layers), "{!r}")
            raise ModelError(
                f"tensor_plan names {pattern!r}, but the model has no such layer.{hint} "
                f"Its linear layers are: {', '.join(_linear(layers)) or 'none'}"
            )
        for name in names if isinstance(how, str) else ():
            _check_layer(name, layers[name], str(how), slices)
        cuts.update(dict.fromkeys(names, how))
    _refuse_tied(model, layers, list(cuts))
    return cuts


def _refuse_tied(model: nn.Module, layers: Mapping[str, nn.Module], cut: list[str]) -> None:
    """A parameter that two layers share would become two parameters, each trained by itself."""
    places: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        places.setdefault(id(parameter), []).append(name)
    for name in cut:
        for parameter in layers[name].parameters():
            if len(shared := places[id(parameter)]) > 1:
                raise ModelError(
                    f"tensor_plan names {name!r}, whose weight is shared: {' and '.join(shared)} are one parameter; "
                    "only whole parameters can be shared. Leave that layer out of tensor_plan"
                )


def _check_layer(name: str, layer: nn.Module, how: str, slices: int) -> None:
    if not isinstance(layer, nn.Linear):
        raise ModelError(
            f"tensor_plan[{name!r}]={how!r}: that layer is a {type(layer).__name__}, and linear layers alone are cut "
            "by these words. Name a linear layer, or give a ParallelStyle of torch"
        )
    size, what = layer.weight.shape[CUT[how]], ("outputs", "inputs")[CUT[how]]
    if size % slices:
        raise ModelError(
            f"tensor_plan[{name!r}]={how!r}: its {size} {what} cannot be cut into {slices} equal slices. Choose a "
            f"multiple of {slices} for that size, or another tensor= in the plan"
        )


def _linear(layers: Mapping[str, nn.Module]) -> list[str]:
    return [name for name, layer in layers.items() if isinstance(layer, nn.Linear)]


def _style(how: str | ParallelStyle) -> Any:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    return {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}[how]() if isinstance(how, str) else how
