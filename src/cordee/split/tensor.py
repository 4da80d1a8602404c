"""Tensor parallelism: weight matrices cut over workers, as was found or as the job's plan names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Union

import torch
from torch import Tensor, nn

from cordee.core.errors import ModelError, WorkersLost
from cordee.core.words import did_you_mean
from cordee.group.sliced import is_sliced
from cordee.group.team import Team
from cordee.split.attention import cut_attention
from cordee.split.cut import WORDS, Cut, LayerCut
from cordee.split.layers import Meeting, cut_linear, is_linear, size_of
from cordee.split.pipeline import Pipeline, Staging
from cordee.split.seam import Split

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

TensorPlan = Union[Mapping[str, Union[str, "ParallelStyle"]], Cut]  # noqa: UP007 - a name that is not there yet
"""For names of layers, which may hold `*`: `"column"`, `"row"`, or a `ParallelStyle` of torch. Or what was found."""

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
        mesh, layers = self._team.lines.device_mesh()["slice"], dict(model.named_modules())
        meetings: dict[int, Meeting] = {}
        for one in plan.layers:
            layer, meeting = layers[one.layer], meetings.setdefault(one.group, Meeting(self._team))
            if isinstance(layer, nn.MultiheadAttention):
                cut_attention(layer, meeting, mesh)
            elif one.how != "style":
                cut_linear(layer, one.how, meeting, mesh, one.blocks)
        for each in plan.settings:
            setattr(layers[each.module], each.name, each.value)
        for name in plan.partial:
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
        if not any(parameter is one for one in hooked):
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


def check_found(cut: Cut, model: nn.Module) -> None:
    """Refuse to start where nothing is cut: it would take several workers for what one computes."""
    if cut.layers:
        return
    why = "; ".join(f"{one.layer}: {one.reason}" for one in cut.whole[:4]) or "it has no linear layer"
    raise ModelError(
        f"tensor={cut.slices} cuts linear layers over {cut.slices} workers, but of this {type(model).__name__} none "
        f"can be cut: {why}. Choose another tensor= in the plan, or name layers yourself with tensor_plan=, such as "
        'tensor_plan={"*.up": "column", "*.down": "row"}: of two linear layers after each other the first is cut by '
        "columns, the second by rows"
    )


def check(model: nn.Module, plan: Mapping[str, str | ParallelStyle], slices: int) -> tuple[Cut, dict[str, Any]]:
    """How each layer that the plan names is cut, and by which styles; a plan that does not fit the model is refused."""
    layers = {name: module for name, module in model.named_modules() if name}
    if not plan:
        raise ModelError(
            f"tensor={slices} cuts layers, but tensor_plan names no layer. A job without tensor_plan= gets a cut that "
            "is found by itself, and so does a script that shows its model a sample: s.prepare(model, sample=x). Or "
            'name layers, as in tensor_plan={"0": "column", "2": "row"}: of two linear layers after each other the '
            f"first is cut by columns, the second by rows. {_linear(layers)}"
        )
    cuts: dict[str, LayerCut] = {}
    styles: dict[str, Any] = {}
    for pattern, how in plan.items():
        if isinstance(how, str) and how not in WORDS:
            hint = did_you_mean(how, list(WORDS), "{!r}")
            raise ModelError(f"tensor_plan[{pattern!r}]={how!r}: expected column, row or a ParallelStyle.{hint}")
        names = [name for name in layers if fnmatchcase(name, pattern)]
        if not names:
            hint = did_you_mean(pattern, list(layers), "{!r}")
            raise ModelError(f"tensor_plan names {pattern!r}, but the model has no such layer.{hint} {_linear(layers)}")
        for name in names:
            word = WORDS[how] if isinstance(how, str) else "style"
            styles.update({name: how} if word == "style" else {})
            if word != "style":
                styles.pop(name, None)
                _check_layer(name, layers[name], how, slices)
            cuts[name] = LayerCut(name, word, tuple(getattr(layers[name], "weight", torch.empty(0)).shape), len(cuts))
    _refuse_tied(model, layers, list(cuts))
    return Cut(slices, tuple(cuts.values())), styles


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


def _check_layer(name: str, layer: nn.Module, how: Any, slices: int) -> None:
    if not is_linear(layer):
        raise ModelError(
            f"tensor_plan[{name!r}]={how!r}: that layer is a {type(layer).__name__}, and linear layers alone are cut "
            "by these words. Name a linear layer, or give a ParallelStyle of torch"
        )
    size, what = size_of(layer, WORDS[how]), "outputs" if WORDS[how] == "column" else "inputs"
    if size % slices:
        raise ModelError(
            f"tensor_plan[{name!r}]={how!r}: its {size} {what} cannot be cut into {slices} equal slices. Choose a "
            f"multiple of {slices} for that size, or another tensor= in the plan"
        )


def _linear(layers: Mapping[str, nn.Module]) -> str:
    return f"Its linear layers are: {', '.join(name for name, layer in layers.items() if is_linear(layer)) or 'none'}"
