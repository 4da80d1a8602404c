"""Whether some layers can be cut: the forward pass around them is repeated with each slice, and compared.

The column layers are given outputs drawn at random, so that weights which are zero at the start hide nothing. With a
slice of these the row layer must be given the same slice of what it is given with all of them. What happens in between
need not be understood.
"""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from cordee.split.cut import Setting
from cordee.split.layers import is_linear, size_of
from cordee.split.trace import Call, Trace, as_in_evaluation

HEADS = re.compile(r"heads?$")
"""How attributes are called that count heads."""
PLAIN = (Tensor, bool, int, float, str, type(None), torch.dtype, torch.device)
"""What a pass can be repeated with; other arguments, such as caches of keys and values, are left out."""


@dataclass(frozen=True)
class Group:
    """Layers that are cut together: the outputs of `columns` reach `row`, and no other linear layer."""

    columns: tuple[str, ...]
    row: str
    blocks: int = 1
    settings: tuple[Setting, ...] = ()


class Misfit(Exception):
    """Why layers cannot be cut."""


class Uneven(Misfit):
    """A size that the number of workers does not divide."""


def try_group(model: nn.Module, seen: Trace, group: Group, slices: int) -> Group:
    """The group as it can be cut, with blocks and settings; raises `Misfit`."""
    modules = dict(model.named_modules())
    row, columns = modules[group.row], [modules[name] for name in group.columns]
    width = size_of(row, "row")
    sizes = {f"inputs of {group.row}": width}
    sizes |= {f"outputs of {name}": size_of(modules[name], "column") for name in group.columns}
    for what, size in sizes.items():
        if size % slices:
            raise Uneven(f"the {size} {what} cannot be shared out over {slices} workers")
    around = _around(seen, group)
    if around is None:
        raise Misfit("no module holds them whose forward pass could be repeated")
    calls = [seen.calls[one] for one in (*group.columns, group.row)]
    region = _Region(modules[around], seen.calls[around], columns, row, calls)
    region.check_repeats(model)
    failure = ""
    for blocks in _blocks(columns, width):
        for settings in _settings(modules, around, width, slices):
            failure = region.differs(model, slices, blocks, [(modules[one.module], one) for one in settings])
            if not failure:
                return Group(group.columns, group.row, blocks, settings)
    for uneven in _uneven(modules, around, slices):
        raise Uneven(uneven)
    raise Misfit(failure)


def _around(seen: Trace, group: Group) -> str | None:
    """The innermost module that was called and holds all of these."""
    parts = [name.split(".")[:-1] for name in (*group.columns, group.row)]
    common = 0
    while all(len(one) > common and one[common] == parts[0][common] for one in parts):
        common += 1
    for length in range(common, -1, -1):
        name = ".".join(parts[0][:length])
        if name in seen.calls:
            return name
    return None


def _blocks(columns: Sequence[nn.Module], width: int) -> tuple[int, ...]:
    """Into how many blocks the output of a column layer may be meant to fall, the likeliest first."""
    times = size_of(columns[0], "column") / width if len(columns) == 1 else 1
    return (int(times), 1) if times in (2, 3) else (1,)


def _settings(modules: Mapping[str, nn.Module], around: str, width: int, slices: int) -> Iterator[tuple[Setting, ...]]:
    """Which attributes may have to be divided: none; what counts heads; and what is as large as the row's input."""
    numbers = [
        Setting(name, attribute, value // slices)
        for name, module in _near(modules, around)
        for attribute, value in vars(module).items()
        if type(value) is int and value and value % slices == 0 and (HEADS.search(attribute) or value == width)
    ]
    heads = tuple(one for one in numbers if HEADS.search(one.name))
    yield from dict.fromkeys(((), heads, tuple(numbers)))


def _near(modules: Mapping[str, nn.Module], around: str) -> Iterator[tuple[str, nn.Module]]:
    """The module around a group and those in it that are no linear layers."""
    for name, module in modules.items():
        if (not around or name == around or name.startswith(around + ".")) and not is_linear(module):
            yield name, module


def _uneven(modules: Mapping[str, nn.Module], around: str, slices: int) -> Iterator[str]:
    """Numbers of heads that cannot be shared out."""
    for name, module in _near(modules, around):
        config = getattr(module, "config", None)
        for owner in (module, config):
            for attribute, value in vars(owner).items() if owner is not None and hasattr(owner, "__dict__") else ():
                if type(value) is int and HEADS.search(attribute) and value % slices:
                    where = f"{name or type(module).__name__}{'.config' if owner is config else ''}"
                    yield f"{where}.{attribute}={value} cannot be shared out over {slices} workers"


class _Region:
    """The forward pass of one module, in which the layers of a group can be made to compute with a slice."""

    def __init__(
        self, module: nn.Module, call: Call, columns: Sequence[nn.Module], row: nn.Module, calls: Sequence[Call]
    ) -> None:
        """`calls` are those of the columns and the row, as they were seen."""
        self._module, self._columns, self._row = module, columns, row
        self._args, self._kwargs = (tree_map(_plain, given) for given in (call.args, call.kwargs))
        draw = torch.Generator().manual_seed(0)
        self._drawn = [torch.randn(one.results[0].shape, generator=draw).to(one.results[0]) for one in calls]
        self._whole: Tensor | None = None

    def check_repeats(self, model: nn.Module) -> None:
        """Let the pass give what it gives with all outputs, twice."""
        try:
            with as_in_evaluation(model):
                self._whole, again = self._run(self._drawn[:-1]), self._run(self._drawn[:-1])
        except Exception as error:
            raise Misfit(f"its forward pass cannot be repeated: {_line(error)}") from error
        if not alike(again, self._whole):
            raise Misfit("its forward pass gives another result when it is repeated")

    def differs(self, model: nn.Module, slices: int, blocks: int, settings: Sequence[tuple[nn.Module, Setting]]) -> str:
        """How the row layer's input with a slice differs from a slice of its whole input; empty: not at all."""
        assert self._whole is not None
        with as_in_evaluation(model), set_to(settings):
            for place in range(slices):
                try:
                    part = self._run([narrowed(one, place, slices, blocks) for one in self._drawn[:-1]])
                except Exception as error:
                    where = _failing(error, model, self._module)
                    return f"with a slice of its outputs {where} fails: {_line(error)}"
                if not alike(part, narrowed(self._whole, place, slices)):
                    return "with a slice of its outputs other numbers come out: they do not stay apart"
        return ""

    def _run(self, outputs: Sequence[Tensor]) -> Tensor:
        """The input of the row layer, where the column layers give these."""
        given: list[Tensor] = []

        def take(x: Tensor) -> Tensor:
            given.append(x)
            return self._drawn[-1]

        with ExitStack() as stack:
            for column, output in zip(self._columns, outputs, strict=True):
                stack.enter_context(computing(column, lambda *_, output=output: output))
            stack.enter_context(computing(self._row, take))
            self._module(*self._args, **self._kwargs)
        return given[0]


@contextmanager
def computing(layer: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """In here the layer computes this instead."""
    before = vars(layer).get("forward")
    layer.forward = forward
    try:
        yield
    finally:
        del layer.forward
        if before is not None:
            layer.forward = before


@contextmanager
def set_to(settings: Sequence[tuple[nn.Module, Setting]]) -> Iterator[None]:
    """In here modules have these numbers."""
    before = [(module, one.name, getattr(module, one.name)) for module, one in settings]
    try:
        for module, one in settings:
            setattr(module, one.name, one.value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def narrowed(whole: Tensor, place: int, slices: int, blocks: int = 1) -> Tensor:
    """The slice of one worker of a tensor's last dimension, which has so many blocks."""
    return whole.reshape(*whole.shape[:-1], blocks, slices, -1).select(-2, place).flatten(-2)


def alike(one: Any, other: Any) -> bool:
    """Whether all tensors of two results are the same up to rounding."""
    pairs = zip(_tensors(one), _tensors(other), strict=False)
    return len(_tensors(one)) == len(_tensors(other)) and all(_close(*pair) for pair in pairs)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or not one.is_floating_point():
        return torch.equal(one, other)
    scale = float(other.abs().max()) if other.numel() else 0.0
    bound = math.sqrt(torch.finfo(one.dtype).eps) * scale
    return bool(torch.allclose(one.double(), other.double(), rtol=0, atol=bound, equal_nan=True))


def _plain(value: Any) -> Any:
    return value if isinstance(value, PLAIN) else None


def _failing(error: Exception, model: nn.Module, around: nn.Module) -> str:
    """In whose forward pass it was raised: of a layer between those of the group, or of the module around them."""
    calls = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    found = [one for one in calls if isinstance(one, nn.Module)][-1:]
    name = next((name for name, one in model.named_modules() if found and one is found[0]), "")
    if not name or found[0] is around:
        return "the forward pass"
    return f"{name} ({type(found[0]).__name__}), which stands between,"


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
