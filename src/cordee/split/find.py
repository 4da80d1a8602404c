"""Finds which layers of a model can be cut: one forward pass proposes, and each proposal is tried before it counts.

What is not understood stays whole on every worker: correct, only not cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from cordee.core.errors import ModelError
from cordee.split.attention import why_whole
from cordee.split.cut import Cut, LayerCut, Setting, Whole
from cordee.split.layers import is_linear
from cordee.split.named import check, corrects, words_of
from cordee.split.sequence import find_streams
from cordee.split.trace import Trace, as_in_evaluation, trace
from cordee.split.trial import Group, Misfit, Uneven, alike, computing, narrowed, set_to, try_group
from cordee.split.vocabulary import LARGE, find_vocabulary, is_embedding

MIXING = {"scaled_dot_product_attention", "softmax", "bmm", "matmul", "__matmul__", "einsum", "baddbmm"}
"""Functions by which features of one head meet each other."""
LEAKS = "the whole model gives another result with it, though the layer by itself does not"


def choose_cut(
    model: nn.Module, run: Callable[[], Any], plan: Mapping[str, Any] | None, slices: int, *, sequence: bool = False
) -> Cut:
    """How the layers of `model` are cut: as found, with what a job's plan corrects, or as it names them in words.

    With `sequence`, also between which blocks each worker can hold some of the tokens; `ModelError` if it cannot.
    """
    if corrects(plan):
        cut = find_cut(model, run, slices, words_of(model, plan or {}))
    else:
        cut = fit_cut(model, run, check(model, plan or {}, slices)[0])
    if not sequence:
        return cut
    streams, reasons = find_streams(model, run, cut.layers, slices)
    if not streams:
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items()) or "it has no list of blocks"
        raise ModelError(
            f"sequence=true lets each worker hold some of the tokens between the blocks of a model, but of this "
            f"{type(model).__name__} no blocks can do so: {why}. Leave sequence=true out of the plan"
        )
    return replace(
        cut, streams=streams, whole_streams=tuple(Whole(name, (), reason) for name, reason in reasons.items())
    )


def find_cut(
    model: nn.Module, run: Callable[[], Any], slices: int, wishes: Mapping[str, str] = MappingProxyType({})
) -> Cut:
    """How the layers of `model` can be cut over `slices` workers; the model stays as it is.

    `run()` calls the model with a few samples and returns its loss, or its output. It is called a few times, and parts
    of the model are called by themselves, all in evaluation mode and without gradients. `wishes` gives layers that
    are to be cut by their `vocabulary`, or to stay `whole`.
    """
    seen = trace(model, run)
    search = _Search(model, seen, slices, _tied(model), wishes)
    search.look()
    while search.groups and not _fits(model, run, seen, search.groups, slices):
        search.retreat()
    return search.cut()


def fit_cut(model: nn.Module, run: Callable[[], Any], named: Cut) -> Cut:
    """A cut whose layers were named, with what their modules need to compute with slices; see `find_cut`.

    Nothing else is cut. Sizes that cannot be shared out are refused. Where a trial fails otherwise, the layers stay cut
    as they were named, with the reason: what they compute then is compared before the start.
    """
    seen = trace(model, run)
    cut = {one.layer: one for one in named.layers}
    words = {name: "vocabulary" if name in cut and cut[name].how == "vocabulary" else "whole" for name in seen.calls}
    found = find_vocabulary(model, seen, frozenset(), named.slices, words)
    cut.update({name: replace(cut[name], reason=why) for name, why in found.layers.items()})
    settings: dict[Setting, None] = {}
    partial: list[str] = []
    for row in (name for name, one in cut.items() if one.how == "row"):
        columns = tuple(one for one in seen.sources.get(row, ()) if one in cut and cut[one].how == "column")
        if not columns or len(columns) < len(seen.sources[row]):
            continue
        number = cut[row].group
        try:
            group = try_group(model, seen, Group(columns, row), named.slices)
            settings.update(dict.fromkeys(group.settings))
            partial += sorted(one for one in seen.weights[row] if seen.acts_only_on(one, row))
            cut.update({one: replace(cut[one], group=number, blocks=group.blocks) for one in columns})
        except Uneven as misfit:
            raise ModelError(
                f"tensor_plan names {', '.join(columns)} and {row}, but {misfit}. Choose a tensor= in the plan that "
                "divides that number, change it in the model, or leave these layers out of tensor_plan"
            ) from misfit
        except Misfit as misfit:
            cut.update({one: replace(cut[one], group=number, reason=str(misfit)) for one in (*columns, row)})
    layers = tuple(cut.values())
    held = _held(model, layers, named.slices)
    return replace(named, layers=layers, settings=tuple(settings), partial=tuple(partial), parameters=held)


def calling(model: nn.Module, sample: Any) -> Callable[[], Any]:
    """A call of the model with a sample: a dict holds arguments by name, a tuple by place."""
    if isinstance(sample, dict):
        return lambda: model(**sample)
    return lambda: model(*sample) if isinstance(sample, tuple) else model(sample)


@dataclass
class _Search:
    """What is found layer by layer."""

    model: nn.Module
    seen: Trace
    slices: int
    tied: dict[str, str]
    """Layers that share a weight, and with which parameter."""
    wishes: Mapping[str, str]
    """Layers that the job has named: `vocabulary` or `whole`."""
    groups: list[Group] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    """Why layers stay whole."""

    def look(self) -> None:
        """Try each layer that takes the outputs of others as the row layer of a group, in the order of their calls."""
        used: set[str] = set()
        for row, sources in self.seen.sources.items():
            columns = tuple(name for name in self.seen.sources if name in sources)
            if not columns or used & {row, *columns}:
                continue
            blamed = columns
            try:
                self._check(row, columns)
                blamed = (*columns, row)
                self.groups.append(try_group(self.model, self.seen, Group(columns, row), self.slices))
                used |= {row, *columns}
            except Misfit as misfit:
                for name in blamed:
                    self.reasons.setdefault(name, str(misfit))

    def _check(self, row: str, columns: Sequence[str]) -> None:
        """Refuse what cannot be a group, as far as the pass has shown."""
        for name in (*columns, row):
            if name in self.wishes:
                raise Misfit(f"tensor_plan has {name} cut otherwise, or whole")
            if name in self.tied:
                raise Misfit(f"{name} shares its weight with {self.tied[name]}")
        for name in columns:
            if len(others := self.seen.consumers(name)) > 1:
                raise Misfit(f"its output goes to {' and '.join(others[:3])}")
            if name in self.seen.in_loss:
                raise Misfit("its output is also a part of the model's result")
        for weight in sorted(self.seen.weights[row]):
            if not self.seen.acts_only_on(weight, row):
                raise Misfit(f"{weight}, which acts elsewhere too, stands between it and {row}")

    def retreat(self) -> None:
        """Give up the groups that need other settings; if there are none, all."""
        dropped = [one for one in self.groups if one.settings] or self.groups
        self.groups = [one for one in self.groups if one not in dropped]
        self.reasons.update({name: LEAKS for one in dropped for name in (*one.columns, one.row)})

    def cut(self) -> Cut:
        """What was found, as a value."""
        layers = {name: module for name, module in self.model.named_modules() if _has_matrix(module)}
        attentions = {name: one for name, one in layers.items() if isinstance(one, nn.MultiheadAttention)}
        cut = {one.layer: one for one in (*self._linear(layers), *self._attentions(attentions))}
        cut |= {one.layer: one for one in self._vocabulary(frozenset(cut))}
        order = [*self.seen.calls, *(name for name in layers if name not in self.seen.calls)]
        inside = tuple(f"{name}." for name in attentions)  # their projections are parts of them
        rest = [name for name in order if name in layers and name not in cut and not name.startswith(inside)]
        settings = dict.fromkeys(one for group in self.groups for one in group.settings)
        found = tuple(cut[name] for name in order if name in cut)
        return Cut(
            self.slices,
            found,
            tuple(Whole(name, _shape(layers[name]), self._why(name, layers[name])) for name in rest),
            tuple(settings),
            tuple(self._partial()),
            _held(self.model, found, self.slices),
        )

    def _partial(self) -> list[str]:
        """Parameters that act on slices."""
        return [name for group in self.groups for name in sorted(self.seen.weights[group.row])]

    def _vocabulary(self, cut: frozenset[str]) -> Iterator[LayerCut]:
        found = find_vocabulary(self.model, self.seen, cut.union(self._partial()), self.slices, self.wishes)
        self.reasons.update(found.reasons)
        modules = dict(self.model.named_modules())
        for number, (name, why) in enumerate(found.layers.items(), start=len(cut)):
            yield LayerCut(name, "vocabulary", _shape(modules[name]), number, 1, why)

    def _linear(self, layers: Mapping[str, nn.Module]) -> Iterator[LayerCut]:
        for number, group in enumerate(self.groups):
            for name in group.columns:
                how = "by heads" if self.seen.functions.get(name, set()) & MIXING else "feature by feature"
                yield LayerCut(name, "column", _shape(layers[name]), number, group.blocks, f"goes to {group.row} {how}")
            why = f"takes the slices of {', '.join(group.columns)}"
            yield LayerCut(group.row, "row", _shape(layers[group.row]), number, 1, why)

    def _attentions(self, attentions: Mapping[str, nn.MultiheadAttention]) -> Iterator[LayerCut]:
        for number, (name, one) in enumerate(attentions.items(), start=len(self.groups)):
            free = not (self.tied.keys() | self.wishes.keys()) & {name, f"{name}.out_proj"}
            if why := why_whole(one, self.slices) if free else "":
                self.reasons[name] = why
            elif free and name in self.seen.calls:
                told = f"{one.num_heads // self.slices} of its {one.num_heads} heads on each worker"
                yield LayerCut(name, "heads", _shape(one), number, 3, told)

    def _why(self, name: str, layer: nn.Module) -> str:
        if self.wishes.get(name) == "whole":
            return "tensor_plan says so"
        if name in self.reasons:
            return self.reasons[name]
        if name in self.tied:
            return f"shares its weight with {self.tied[name]}"
        if is_embedding(layer):
            return f"it has fewer than {LARGE:,} rows"
        if not is_linear(layer):
            return f"layers of this kind ({type(layer).__name__}) are not cut"
        if name not in self.seen.calls:
            return "the forward pass does not call it as a layer"
        if name in self.seen.in_loss:
            return f"its output is the model's result, of fewer than {LARGE:,} numbers"
        return "its output reaches no other linear layer that is free"


def _fits(model: nn.Module, run: Callable[[], Any], seen: Trace, groups: Sequence[Group], slices: int) -> bool:
    """Whether the whole model gives its result with each slice, where row layers give what they gave before."""
    modules = dict(model.named_modules())
    settings = [(modules[one.module], one) for one in dict.fromkeys(one for group in groups for one in group.settings)]
    for place in range(slices):
        with ExitStack() as stack:
            stack.enter_context(as_in_evaluation(model))
            stack.enter_context(set_to(settings))
            for group in groups:
                for name in group.columns:
                    forward = _narrowing(modules[name].forward, place, slices, group.blocks)
                    stack.enter_context(computing(modules[name], forward))
                results = iter(seen.calls[group.row].results)
                stack.enter_context(computing(modules[group.row], lambda *_, results=results: next(results)))
            try:
                if not alike(run(), seen.result):
                    return False
            except Exception:
                return False
    return True


def _narrowing(forward: Callable[..., Tensor], place: int, slices: int, blocks: int) -> Callable[..., Tensor]:
    return lambda *args, **kwargs: narrowed(forward(*args, **kwargs), place, slices, blocks)


def _tied(model: nn.Module) -> dict[str, str]:
    """Layers of which a parameter has another name too, and that name."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    shared = [group for group in names.values() if len(group) > 1]
    return {
        name.rpartition(".")[0]: next(other for other in group if other != name) for group in shared for name in group
    }


def _held(model: nn.Module, layers: Sequence[LayerCut], slices: int) -> tuple[int, int]:
    """How many numbers one worker holds of the parameters of a model, and how many there are."""
    modules = dict(model.named_modules())
    cut = {
        id(parameter): parameter.numel()
        for one in layers
        for name, parameter in modules[one.layer].named_parameters()
        if not (name.endswith("bias") and (one.how == "row" or "." in name))
    }
    whole = sum(one.numel() for one in model.parameters())
    return whole - sum(cut.values()) + sum(-(-size // slices) for size in cut.values()), whole


def _has_matrix(module: nn.Module) -> bool:
    """Whether it is listed: a layer with a weight matrix, or an attention."""
    weight = module._parameters.get("weight")
    return isinstance(module, nn.MultiheadAttention) or (isinstance(weight, Tensor) and weight.dim() >= 2)


def _shape(module: nn.Module) -> tuple[int, ...]:
    weight = module.in_proj_weight if isinstance(module, nn.MultiheadAttention) else module._parameters["weight"]
    return tuple(weight.shape) if isinstance(weight, Tensor) else ()
