"""Layers with a row for each word of a vocabulary: embeddings, and the head that gives a number for each word.

Each worker holds some of the rows, of a weight that both share too. An embedding gives zeros for words that other
workers hold, and what all give is added up. A head gives its numbers, and those of all are gathered. So both give
whole outputs, and nothing around them has to be tried. The last slice may be smaller: a vocabulary of any size fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from cordee.core.errors import ModelError
from cordee.group.sliced import is_sliced, slice_of
from cordee.group.team import Team
from cordee.split.layers import Meeting, column_part, cut_dimension, gathered, is_linear, local, share_of
from cordee.split.trace import Trace

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

LARGE = 4096
"""So many rows are cut by themselves; of smaller vocabularies a slice saves less than what travels for it."""


def is_embedding(layer: nn.Module) -> bool:
    """Whether it is an embedding that computes as torch's do, on a weight of its own."""
    plain = isinstance(layer, nn.Embedding) and type(layer).forward is nn.Embedding.forward
    return plain and isinstance(layer._parameters.get("weight"), nn.Parameter)


def has_rows(layer: nn.Module) -> bool:
    """Whether it is of a kind that can be cut so."""
    return is_embedding(layer) or is_linear(layer)


def why_whole(layer: nn.Module, slices: int) -> str:
    """Why an embedding or a linear layer cannot be cut by its vocabulary; empty if it can."""
    for name in ("max_norm", "scale_grad_by_freq", "sparse"):
        if is_embedding(layer) and getattr(layer, name):
            return f"it has {name}={getattr(layer, name)}, which needs all rows"
    if share_of(_words(layer), slices - 1, slices)[1] < 1:
        return f"its {_words(layer)} rows are too few for {slices} workers"
    return ""


def _words(layer: nn.Module) -> int:
    weight: Tensor = layer.weight  # type: ignore[assignment]
    return weight.shape[_dimension(layer)]


def _dimension(layer: nn.Module) -> int:
    return cut_dimension(layer, "column")


def told(layer: nn.Module, slices: int) -> str:
    """What a worker holds of it, and what that costs."""
    held = f"each worker holds {share_of(_words(layer), 0, slices)[1]:,} of {_words(layer):,} rows"
    if is_embedding(layer):
        return f"{held}; outputs are added up"
    return f"{held}; {_words(layer):,} outputs per input are gathered in every forward pass"


def cut_vocabulary(model: nn.Module, layer: nn.Module, team: Team, mesh: DeviceMesh) -> None:
    """Keep this worker's rows of a layer, and of those that share its weight; in place."""
    words = _words(layer)
    for name, whole in list(layer._parameters.items()):
        if whole is not None and not is_sliced(whole):
            slice_of(layer, name, _dimension(layer) if name == "weight" else 0, mesh)
            for module in model.modules():
                for other in [other for other, one in module._parameters.items() if one is whole]:
                    setattr(module, other, getattr(layer, name))
    layer.forward = partial(_look_up, layer, team) if is_embedding(layer) else partial(_head, layer, team, words)


def _look_up(layer: Any, team: Team, input: Tensor) -> Tensor:
    first, count = share_of(layer.num_embeddings, team.slices.rank, team.slices.size)
    foreign = (input < first) | (input >= first + count)
    index = torch.where(foreign, 0, input - first)
    index = torch.where((input < 0) | (input >= layer.num_embeddings), -1, index)  # refused, by all workers alike
    padding = None if layer.padding_idx is None else layer.padding_idx - first
    padding = padding if padding is not None and 0 <= padding < count else None
    part = nn.functional.embedding(index, local(layer.weight), padding)
    return Meeting(team).leave(part.masked_fill(foreign[..., None], 0.0))


def _head(layer: Any, team: Team, words: int, input: Tensor) -> Tensor:
    return gathered(column_part(layer, Meeting(team), input), -1, words, team)


class Found(NamedTuple):
    """Layers that are cut by their vocabulary, and why others stay whole."""

    layers: dict[str, str]
    """What is told of each."""
    reasons: dict[str, str]


def find_vocabulary(
    model: nn.Module, seen: Trace, busy: frozenset[str], slices: int, wishes: Mapping[str, str]
) -> Found:
    """The layers with a large vocabulary that can be cut by it, those that share a weight together.

    `busy` are layers that are cut otherwise, and parameters that act on slices. `wishes` has words of the job.
    """
    found = Found({}, {})
    for parameter, layers in sharing(model).items():
        if busy & {parameter, *layers} or not any(_worth(name, one, seen, wishes) for name, one in layers.items()):
            continue
        if reason := next(_reasons(model, seen, layers, slices, wishes), ""):
            if "vocabulary" in map(wishes.get, layers):
                raise ModelError(
                    f"tensor_plan cuts {' and '.join(layers)} by vocabulary, but {reason}. Take that out of tensor_plan"
                )
            found.reasons.update(dict.fromkeys(layers, reason))
        else:
            for name, one in layers.items():
                others = [other for other in layers if other != name]
                found.layers[name] = told(one, slices) + (f"; one weight with {', '.join(others)}" if others else "")
    return found


def sharing(model: nn.Module) -> dict[str, dict[str, nn.Module]]:
    """For each weight of an embedding or a linear layer, by its first name, the layers that have it."""
    names = {id(one): name for name, one in model.named_parameters()}
    layers: dict[str, dict[str, nn.Module]] = {}
    for name, module in model.named_modules():
        if has_rows(module):
            layers.setdefault(names[id(module.weight)], {})[name] = module
    return layers


def _worth(name: str, layer: nn.Module, seen: Trace, wishes: Mapping[str, str]) -> bool:
    """Whether the job wants it to be cut so, or, if it says nothing, whether it is large and an embedding or a head."""
    if name in wishes:
        return wishes[name] == "vocabulary"
    head = name in seen.in_loss and not seen.consumers(name)
    return _words(layer) >= LARGE and (is_embedding(layer) or head)


def _reasons(
    model: nn.Module, seen: Trace, layers: Mapping[str, nn.Module], slices: int, wishes: Mapping[str, str]
) -> Iterator[str]:
    """Why these layers, which share a weight, cannot be cut by their vocabulary."""
    names = {id(one): name for name, one in model.named_parameters()}
    for name, layer in layers.items():
        if wishes.get(name) == "whole":
            yield f"tensor_plan keeps {name} whole"
        if why := why_whole(layer, slices):
            yield why
        if len({_dimension(one) for one in layers.values()}) > 1:
            yield f"{' and '.join(layers)} share a weight that {name} takes the other way round"
        for kind, parameter in layer.named_parameters(recurse=False):
            users = seen.users.get(names[id(parameter)], set())
            if others := [one or "the model" for one in users - (layers.keys() if kind == "weight" else {name})]:
                yield f"{names[id(parameter)]} is also used by {' and '.join(sorted(others))}"
            elif kind == "weight" and not users:
                yield "the forward pass does not use it"
