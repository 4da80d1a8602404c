"""Where a model can be cut: its units, found in a recorded forward pass.

Every stage runs the whole forward code, but of the modules with parameters only its own; the others give placeholders.
A cut lies behind the call of a module. What is made before it and used after it crosses it: these must be outputs of
module calls, for only there can a stage put in what it has received. What the user's own code computes in between,
without parameters, each stage computes again.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise

from torch import nn

from cordee.core.errors import ModelError
from cordee.split.record import Call, Op, Trace


class CannotCut(Exception):
    """Why there is no cut at some place."""


@dataclass(frozen=True)
class Crossing:
    """A value that crosses a cut: which tensor of the result of which call."""

    call: Call
    leaf: int


@dataclass(frozen=True)
class Segment:
    """Calls that stay together, and what crosses the cut behind them."""

    calls: tuple[Call, ...]
    crossing: tuple[Crossing, ...] = ()

    @property
    def first(self) -> Call:
        """The call that it is named after."""
        return next(call for call in self.calls if call.stateful)


@dataclass
class Units:
    """A pass as a row of calls, some of which a stage may leave out; `segments` are what it can be cut into."""

    trace: Trace
    calls: list[Call]
    """In order, none within another; those without state run on every stage."""
    segments: list[Segment] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    """Names of calls behind which the model cannot be cut, and why."""

    def __post_init__(self) -> None:
        """Find out which values a stage without these calls does not have."""
        self._begins = [call.begin for call in self.calls]
        self.absent: set[int] = set()
        made_by: dict[Op, list[int]] = {}
        for value, op in enumerate(self.trace.maker):
            if op is not None:
                made_by.setdefault(op, []).append(value)
        self.absent.update(self.trace.parameters, self.trace.unknown)
        for op in self.trace.ops:
            if self._left_out(op.time) or not self.absent.isdisjoint(op.inputs):
                self.absent.update(made_by.get(op, ()))

    def holder(self, time: int) -> Call | None:
        """The call that was under way at this time."""
        at = bisect_right(self._begins, time) - 1
        return self.calls[at] if at >= 0 and time <= self.calls[at].end else None

    def outside(self) -> list[Op]:
        """Operations that run on every stage up to its end."""
        return [op for op in self.trace.ops if not self._left_out(op.time)]

    def _left_out(self, time: int) -> bool:
        call = self.holder(time)
        return call is not None and call.stateful

    def groups(self) -> list[list[Call]]:
        """Each call with state, with the calls without that follow it, as pooling after a convolution."""
        groups: list[list[Call]] = [[]]
        for call in self.calls:
            if call.stateful and any(one.stateful for one in groups[-1]):
                groups.append([])
            groups[-1].append(call)
        return groups

    def crossing(self, time: int) -> tuple[Crossing, ...]:
        """What crosses a cut at this time; `CannotCut` if it cannot be."""
        for op in self.outside():
            if op.reads and op.time <= time and not self.absent.isdisjoint(op.inputs):
                raise CannotCut(f"`{op.name}` reads numbers that layers before it have computed, outside of layers")
        found: dict[int, Crossing] = {}
        asked: set[int] = set()
        late = [value for op in self.trace.ops if op.time > time for value in op.inputs]
        queue = [value for value in (*self.trace.results, *late) if self.trace.made[value] <= time]
        while queue:
            value = queue.pop(0)
            if value in asked or value not in self.absent or value in self.trace.parameters:
                continue
            asked.add(value)
            call = self.holder(self.trace.made[value])
            if call is not None and value in call.outputs:
                found[value] = Crossing(call, call.outputs.index(value))
            else:
                queue += self._sources(value, call)
        order = {id(call): place for place, call in enumerate(self.calls)}
        return tuple(sorted(found.values(), key=lambda one: (order[id(one.call)], one.leaf)))

    def _sources(self, value: int, call: Call | None) -> tuple[int, ...]:
        """What has to cross for a value that the user's own code computes from it."""
        op = self.trace.maker[value]
        if op is None:
            raise CannotCut("a tensor that carries gradients comes from an operation that PyTorch does not show")
        if call is not None and call.stateful:
            raise CannotCut(
                f"{call.name!r} computes or changes a tensor that is used behind the cut, but does not return it"
            )
        for one in op.inputs:
            if one in self.trace.parameters:
                name = next(n for n, p in self.trace.model.named_parameters() if p is self.trace.parameters[one])
                raise CannotCut(
                    f"parameter {name!r} is used before it, outside of layers, for what is needed behind it"
                )
        return op.inputs


def find_units(trace: Trace) -> Units:
    """What a recorded pass can be cut into: modules are opened as long as what is inside is a chain."""
    units = Units(trace, list(trace.calls))
    _check(units)
    looked_at: set[int] = set()
    while True:
        at = next((at for at, call in enumerate(units.calls) if call.stateful and id(call) not in looked_at), None)
        if at is None:
            break
        call = units.calls[at]
        looked_at.add(id(call))
        if any(child.stateful for child in call.children):
            opened = Units(trace, [*units.calls[:at], *call.children, *units.calls[at + 1 :]])
            if call.module is trace.model or _is_chain(call, units, opened):
                units = opened
    _cut(units)
    _check_state(units)
    return units


def _check(units: Units) -> None:
    """Refuse passes that no cut can be right for."""
    if not any(call.stateful for call in units.calls):
        raise ModelError("the model has no layer with parameters that its forward pass calls: nothing can be cut")
    if sum(call.module is units.trace.model for call in units.calls) > 1:
        raise ModelError(
            "the model is called more than once for one loss, so its layers cannot lie on different stages. Put both "
            "inputs into one batch and call it once, or do not use pipeline"
        )


def _check_state(units: Units) -> None:
    held = {part for call in units.calls if call.stateful for part in call.module.modules()}
    for name, module in units.trace.model.named_modules():
        if module in units.trace.changed - held:
            raise ModelError(
                f"layer {name or 'model'!r} changes a buffer of its own in the forward pass, outside of the layers "
                "that are cut: each stage would change it again. Move it into a layer with its own forward"
            )
    for call in units.calls:
        trained = [name for name, one in call.module.named_parameters() if one.requires_grad]
        if not call.graded and trained:
            raise ModelError(
                f"layer {call.name!r} runs under torch.no_grad, but its parameter {trained[0]!r} requires gradients. "
                "If it is checkpointed, use checkpoint(..., use_reentrant=False); if it is not trained, freeze it with "
                "requires_grad_(False)"
            )


def _cut(units: Units) -> None:
    """Make segments of the groups; those between which there is no cut stay together."""
    together: list[Call] = []
    groups = units.groups()
    for group in groups:
        together += group
        if group is groups[-1]:
            units.segments.append(Segment(tuple(together)))
            return
        try:
            crossing = units.crossing(group[-1].end)
        except CannotCut as reason:
            units.reasons[group[-1].name] = str(reason)
        else:
            units.segments.append(Segment(tuple(together), crossing))
            together = []


def _is_chain(call: Call, closed: Units, opened: Units) -> bool:
    """Whether a module is a row of layers, each of which takes what the one before gave.

    A list of layers is one. So is a module inside of which no more values cross a cut than cross that before it:
    a block with a residual connection is none.
    """
    if _has_list(call, opened):
        return True
    if any(True for _ in call.module.parameters(recurse=False)):
        return False
    last = [child for child in call.children if child.stateful][-1]
    before = [group[-1].end for group in closed.groups() if group[-1].end < call.begin]
    inside = [group[-1].end for group in opened.groups() if call.begin < group[-1].begin and group[-1].end < last.begin]
    try:
        width = max([1, *(len(closed.crossing(end)) for end in before[-1:])])
        return all(len(opened.crossing(end)) <= width for end in inside)
    except CannotCut:
        return False


def is_list(module: nn.Module) -> bool:
    """Whether its layers are listed, one after the other."""
    return isinstance(module, (nn.ModuleList, nn.Sequential))


def _has_list(call: Call, opened: Units) -> bool:
    """Whether it calls at least two layers of one list, each with what the one before gave."""
    lists = [one for one in call.module.modules() if is_list(one)]
    for layers in lists:
        members = set(layers.children())
        called = [child for child in call.children if child.stateful and child.module in members]
        if len(called) > 1 and all(_feeds(one, other, opened) for one, other in pairwise(called)):
            return True
    return False


def _feeds(one: Call, other: Call, units: Units) -> bool:
    """Whether an operation in `other` uses what `one` returned, or what was computed from that in between."""
    trace = units.trace
    reached = {value for value in one.outputs if trace.made[value] >= one.begin}
    for op in trace.ops:
        if one.end < op.time < other.end and not reached.isdisjoint(op.inputs):
            if op.time > other.begin:
                return True
            reached.update(value for value, maker in enumerate(trace.maker) if maker is op)
    return False
