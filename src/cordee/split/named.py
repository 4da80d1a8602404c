"""Cuts that a job names layer by layer: what its words mean, and whether they fit the model."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from cordee.core.errors import ModelError
from cordee.core.words import did_you_mean
from cordee.split.cut import CORRECTIONS, WORDS, Cut, LayerCut
from cordee.split.layers import is_linear, size_of
from cordee.split.vocabulary import has_rows, sharing, why_whole

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle


def check(model: nn.Module, plan: Mapping[str, str | ParallelStyle], slices: int) -> tuple[Cut, dict[str, Any]]:
    """How each layer that the plan names is cut, and by which styles; a plan that does not fit the model is refused."""
    layers = {name: module for name, module in model.named_modules() if name}
    if not set(plan.values()) - {"whole"}:
        raise ModelError(
            f"tensor={slices} cuts layers, but tensor_plan names no layer. A job without tensor_plan= gets a cut that "
            "is found by itself, and so does a script that shows its model a sample: s.prepare(model, sample=x). Or "
            'name layers, as in tensor_plan={"0": "column", "2": "row"}: of two linear layers after each other the '
            f"first is cut by columns, the second by rows. {_linear(layers)}"
        )
    words = words_of(model, plan)
    for weight_of in sharing(model).values():  # layers that share a weight with one that is cut by rows are cut with it
        if "vocabulary" in map(words.get, weight_of):
            words = {**dict.fromkeys(weight_of, "vocabulary"), **words}
    for name, how in words.items():
        _check_layer(name, layers[name], how, slices)
    styles = {name: how for name, how in words.items() if not isinstance(how, str)}
    cuts = [
        LayerCut(name, "style" if name in styles else how, _shape(layers[name]), at)
        for at, (name, how) in enumerate(words.items())
        if how != "whole"
    ]
    _refuse_tied(model, layers, [one.layer for one in cuts if one.how != "vocabulary"])
    return Cut(slices, tuple(cuts)), styles


def corrects(plan: Mapping[str, Any] | None) -> bool:
    """Whether a plan only says what is to differ from what is found, or nothing at all."""
    return plan is None or (bool(plan) and all(isinstance(how, str) and how in CORRECTIONS for how in plan.values()))


def words_of(model: nn.Module, plan: Mapping[str, str | ParallelStyle]) -> dict[str, Any]:
    """How each layer that the plan names is to be cut; of several patterns the last one counts."""
    layers = {name: module for name, module in model.named_modules() if name}
    words: dict[str, Any] = {}
    for pattern, how in plan.items():
        known = WORDS | CORRECTIONS
        if isinstance(how, str) and how not in known:
            hint = did_you_mean(how, list(known), "{!r}")
            raise ModelError(
                f"tensor_plan[{pattern!r}]={how!r}: expected column, row, vocabulary, whole or a ParallelStyle.{hint}"
            )
        names = [name for name in layers if fnmatchcase(name, pattern)]
        if not names:
            hint = did_you_mean(pattern, list(layers), "{!r}")
            raise ModelError(f"tensor_plan names {pattern!r}, but the model has no such layer.{hint} {_linear(layers)}")
        words.update(dict.fromkeys(names, known[how] if isinstance(how, str) else how))
    return words


def _refuse_tied(model: nn.Module, layers: Mapping[str, nn.Module], cut: list[str]) -> None:
    """A parameter that two layers share would become two parameters, each trained by itself."""
    places: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        places.setdefault(id(parameter), []).append(name)
    for name in cut:
        for parameter in layers[name].parameters():
            if len(shared := places[id(parameter)]) > 1:
                raise ModelError(
                    f"tensor_plan names {name!r}, whose weight is shared: {' and '.join(shared)} are one parameter, "
                    'which can only be cut by "vocabulary". Leave that layer out of tensor_plan'
                )


def _check_layer(name: str, layer: nn.Module, how: Any, slices: int) -> None:
    if not isinstance(how, str) or how == "whole":
        return
    given = f"tensor_plan[{name!r}]={how!r}"
    kinds = "embeddings and linear layers" if how == "vocabulary" else "linear layers"
    if not (has_rows(layer) if how == "vocabulary" else is_linear(layer)):
        raise ModelError(
            f"{given}: that layer is a {type(layer).__name__}, and {kinds} alone are cut by this word. Name another "
            "layer, or give a ParallelStyle of torch"
        )
    if how == "vocabulary":
        if why := why_whole(layer, slices):
            raise ModelError(f"{given}: {why}. Leave that layer out of tensor_plan")
        return
    size, what = size_of(layer, how), "outputs" if how == "column" else "inputs"
    if size % slices:
        raise ModelError(
            f"{given}: its {size} {what} cannot be cut into {slices} equal slices. Choose a multiple of {slices} for "
            "that size, or another tensor= in the plan"
        )


def _shape(layer: nn.Module) -> tuple[int, ...]:
    return tuple(getattr(layer, "weight", torch.empty(0)).shape)


def _linear(layers: Mapping[str, nn.Module]) -> str:
    return f"Its linear layers are: {', '.join(name for name, layer in layers.items() if is_linear(layer)) or 'none'}"
