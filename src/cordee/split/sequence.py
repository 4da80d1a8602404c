"""Finds blocks between which each worker can hold some of the tokens: the code there is tried with slices of them.

A chain of blocks hands one tensor on, (..., tokens, features). The layers of a group need all tokens: before them, the
inputs of a module are gathered (a site), and after the row layer each worker keeps its tokens. What is left of a block,
norms and residual sums, then computes with some tokens. Each block is run with each slice of the tokens: a site has to
be given the same slice of what it is given with all of them, and so has the next block. Row layers give numbers drawn
at random, so that weights which are zero at the start hide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from cordee.split.cut import LayerCut, Site, Stream
from cordee.split.layers import share_of
from cordee.split.tokens import TOKENS, as_call, as_results, by_key, with_result
from cordee.split.trace import as_in_evaluation
from cordee.split.trial import PLAIN, Misfit, alike

ROWS = ("row", "heads")
"""Cuts after which the outputs of all workers are added up."""


@dataclass
class _Seen:
    """What modules were given in each call of one pass, by place and by name, and what they have returned."""

    given: dict[str, list[dict[int | str, Any]]] = field(default_factory=dict)
    results: dict[str, list[Any]] = field(default_factory=dict)
    users: dict[str, set[str]] = field(default_factory=dict)
    """In which blocks each parameter is used; empty: outside of them."""

    def calls(self, name: str) -> int:
        """How often a module has returned."""
        return len(self.results.get(name, ()))


def find_streams(
    model: nn.Module, run: Callable[[], Any], layers: Sequence[LayerCut], slices: int
) -> tuple[tuple[Stream, ...], dict[str, str]]:
    """The chains of blocks that can hold some of the tokens, and why others cannot, by the name of their list.

    `layers` are those that are cut. `run` is called once more; see `find_cut`.
    """
    streams, reasons = [], {}
    chains = _chains(model, layers)
    rows = {one.layer for one in layers if one.how in ROWS}
    record = _record(model, run, [name for blocks in chains.values() for name in blocks], rows)
    for parent, blocks in chains.items():
        try:
            streams.append(_Chain(model, record, layers, slices).fit(blocks))
        except Misfit as misfit:
            reasons[parent] = str(misfit)
    return tuple(streams), reasons


def _chains(model: nn.Module, layers: Sequence[LayerCut]) -> dict[str, list[str]]:
    """Lists of modules of which each holds layers that are cut, by name: the blocks of each."""
    found: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        blocks = [f"{name}.{child}" if name else child for child, _ in module.named_children()]
        inside = any(name.startswith(f"{other}.") for other in found)
        cut = [any(one.layer.startswith(f"{block}.") and one.how != "vocabulary" for one in layers) for block in blocks]
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and not inside and sum(cut) == len(blocks) > 1:
            found[name] = blocks
    return found


def _record(model: nn.Module, run: Callable[[], Any], blocks: Sequence[str], rows: Set[str]) -> _Seen:
    """One pass, of which the arguments and results of all modules in these blocks are kept; those of rows are drawn."""
    seen, draw = _Seen(), torch.Generator().manual_seed(0)
    uses = _Uses(seen, {id(one): name for name, one in model.named_parameters()})

    def begin(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        uses.block = name if name in blocks else uses.block
        given = {key: one if _repeats(one) else None for key, one in by_key(args, kwargs).items()}
        seen.given.setdefault(name, []).append(given)

    def end(name: str, module: nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
        uses.block = "" if name in blocks else uses.block
        if name in rows:
            whole = as_results(result)[0]
            result = with_result(result, 0, torch.randn(whole.shape, generator=draw).to(whole))
        seen.results.setdefault(name, []).append(result)
        return result

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if any(f"{name}.".startswith(f"{block}.") for block in blocks):
                stack.callback(module.register_forward_pre_hook(partial(begin, name), with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(partial(end, name), with_kwargs=True).remove)
        stack.enter_context(as_in_evaluation(model))
        stack.enter_context(uses)
        run()
    return seen


class _Uses(TorchFunctionMode):
    """Notes in which block each parameter is used."""

    def __init__(self, seen: _Seen, names: Mapping[int, str]) -> None:
        super().__init__()
        self._seen, self._names, self.block = seen, names, ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for name in _used((args, kwargs), result, self._names):
            self._seen.users.setdefault(name, set()).add(self.block)
        return result


def _used(given: Any, result: Any, names: Mapping[int, str]) -> set[str]:
    """The parameters that a function was given, if it computes: one that asks for their size or place does not."""
    if not any(isinstance(one, Tensor) for one in tree_leaves(result)):
        return set()
    return {names[id(one)] for one in tree_leaves(given) if id(one) in names}


def _repeats(value: Any) -> bool:
    """Whether a pass can be repeated with it: a cache of keys and values has become another one meanwhile."""
    return all(isinstance(one, PLAIN) for one in tree_leaves(value))


class _Chain:
    """Chains of blocks, and what their modules were given."""

    def __init__(self, model: nn.Module, record: _Seen, layers: Sequence[LayerCut], slices: int) -> None:
        """`layers` are those that are cut."""
        self._model, self._record, self._slices = model, record, slices
        self._modules, self._layers = dict(model.named_modules()), layers
        self._names = {id(one): name for name, one in model.named_parameters()}

    def fit(self, blocks: Sequence[str]) -> Stream:
        """How these blocks compute with some of the tokens; raises `Misfit`."""
        for name in blocks:
            if self._record.calls(name) != 1:
                raise Misfit(f"{name} is called {self._record.calls(name)} times in a forward pass")
        into, out_of = self._handed_on(blocks)
        trials = [self._try_block(name, into, out_of) for name in blocks]
        sites = tuple(Site(name, tuple(keys)) for trial in trials for name, keys in trial.sites.items())
        rows = tuple(name for trial in trials for name in trial.rows)
        partial_ = tuple(dict.fromkeys(name for trial in trials for name in sorted(trial.on_tokens)))
        for parameter in partial_:
            if others := self._record.users[parameter] - set(blocks):
                raise Misfit(f"{parameter} acts on some of the tokens, and in {min(others) or 'the model'} too")
        return Stream(blocks[0], blocks[-1], into, out_of, sites, rows, partial_)

    def _handed_on(self, blocks: Sequence[str]) -> tuple[int | str, int]:
        """Which argument of a block is what the block before has returned, and which of its results that is."""
        results = [as_results(self._record.results[name][0]) for name in blocks]
        given = [self._record.given[name][0] for name in blocks]
        for key in given[0]:
            for out, last in enumerate(results[-1]):
                pairs = zip(results, given[1:], strict=False)
                handed = all(len(one) > out and one[out] is after.get(key) for one, after in pairs)
                if handed and self._has_tokens(given[0][key], last):
                    return key, out
        raise Misfit("no tensor (..., tokens, features) goes from block to block as it is")

    def _has_tokens(self, first: Any, last: Any) -> bool:
        tensors = isinstance(first, Tensor) and isinstance(last, Tensor) and first.is_floating_point()
        return tensors and first.shape == last.shape and first.dim() > 1 and first.shape[TOKENS] >= self._slices

    def _try_block(self, block: str, into: int | str, out_of: int) -> _Trial:
        """The first choice of sites with which the block gives a slice of its result for each slice of the tokens."""
        groups: dict[int, list[LayerCut]] = {}
        for one in self._layers:
            if one.layer.startswith(f"{block}."):
                groups.setdefault(one.group, []).append(one)
        rows = [one.layer for group in groups.values() for one in group if one.how in ROWS]
        if more := [name for name in rows if self._record.calls(name) != 1]:
            raise Misfit(f"{more[0]} is called {self._record.calls(more[0])} times in a forward pass")
        failure = ""
        for choice in product(*(list(self._places(block, group)) for group in groups.values())):
            trial = _Trial({name: {} for names in choice for name in names}, rows, self._record)
            failure = self._differs(block, trial, into, out_of)
            if not failure:
                return trial
        raise Misfit(f"{block} does not compute with some of the tokens: {failure or 'no place to gather them'}")

    def _places(self, block: str, group: Sequence[LayerCut]) -> Iterator[tuple[str, ...]]:
        """Where the tokens of a group may be gathered: at its column layers, and at modules that hold them."""
        columns = [one.layer for one in group if one.how in ("column", "heads")]
        if all(self._record.calls(name) == 1 for name in columns):
            yield tuple(columns)
        parts = columns[0].split(".") if columns else []
        for length in range(len(parts) - 1, len(block.split(".")), -1):
            name = ".".join(parts[:length])
            if all(one.startswith(f"{name}.") for one in columns) and self._record.calls(name) == 1:
                yield (name,)

    def _differs(self, block: str, trial: _Trial, into: int | str, out_of: int) -> str:
        """How the block differs that is given some of the tokens; empty: not at all."""
        given, whole = self._record.given[block][0], self._record.results[block][0]
        for place in range(self._slices):
            trial.begin(place, self._slices, self._names)
            args, kwargs = as_call({**given, into: trial.kept(given[into])})
            try:
                with ExitStack() as stack:
                    trial.watch(self._modules, stack)
                    stack.enter_context(as_in_evaluation(self._model))
                    stack.enter_context(trial)
                    made = self._modules[block](*args, **kwargs)
            except Exception as error:
                return (str(error).splitlines() or [type(error).__name__])[0]
            if not alike(made, with_result(whole, out_of, trial.kept(as_results(whole)[out_of]))):
                return "other numbers come out"
            if both := trial.on_tokens & trial.on_all:
                return f"{min(both)} acts on some of the tokens, and on all"
        return ""


class _Trial(TorchFunctionMode):
    """A pass of one block with some of the tokens, in which sites and row layers do what they will do."""

    def __init__(self, sites: dict[str, dict[int | str, None]], rows: list[str], record: _Seen) -> None:
        """`sites` get the arguments that are gathered there."""
        super().__init__()
        self.sites, self.rows, self._record = sites, rows, record
        self.on_tokens: set[str] = set()
        """Parameters that act on some tokens."""
        self.on_all: set[str] = set()
        """Those that act on all."""

    def begin(self, place: int, slices: int, names: Mapping[int, str]) -> None:
        """The next pass is for this slice."""
        self._place, self._slices, self._names, self._all = place, slices, names, False

    def kept(self, whole: Tensor) -> Tensor:
        """The tokens of the slice."""
        return whole.narrow(TOKENS, *share_of(whole.shape[TOKENS], self._place, self._slices))

    def watch(self, modules: Mapping[str, nn.Module], stack: ExitStack) -> None:
        """Gather at the sites and keep tokens after row layers, in here."""
        for name in self.sites:
            hook = modules[name].register_forward_pre_hook(partial(self._gather, name), with_kwargs=True)
            stack.callback(hook.remove)
        for name in self.rows:
            stack.callback(modules[name].register_forward_hook(partial(self._keep, name)).remove)

    def _gather(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        given, whole = by_key(args, kwargs), self._record.given[name][0]
        if given.keys() != whole.keys():
            raise Misfit(f"{name} is called in another way")
        for key, one in given.items():
            if not isinstance(one, Tensor):
                continue
            if one.shape != whole[key].shape and whole[key].dim() > 1 and alike(one, self.kept(whole[key])):
                given[key] = whole[key]
                self.sites[name][key] = None
            elif not alike(one, whole[key]):
                raise Misfit(f"{name} is given other numbers")
        self._all = True
        return as_call(given)

    def _keep(self, name: str, module: nn.Module, args: Any, result: Any) -> Any:
        self._all = False
        return with_result(result, 0, self.kept(as_results(self._record.results[name][0])[0]))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        (self.on_all if self._all else self.on_tokens).update(_used((args, kwargs), result, self._names))
        return result
