"""Which part of a model lies on which stage of a pipeline, as a value that can be printed and compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from torch import nn

from cordee.core.errors import ModelError, PlanError
from cordee.core.words import did_you_mean, plural
from cordee.split.balance import balance
from cordee.split.costs import measure
from cordee.split.record import Call, record
from cordee.split.units import Segment, Units, find_units

Key = tuple[str, int]
"""A call of a module: the module's name, and how many calls of it came before in the pass."""


@dataclass(frozen=True)
class Unit:
    """Layers that stay together, named after the first of them."""

    name: str
    parameters: int
    """How many numbers are trained in it, each counted where it is used first."""
    cost: float


@dataclass(frozen=True)
class Point:
    """A tensor that goes from one stage to the next: a leaf of what a call returns."""

    call: Key
    leaf: int
    requires_grad: bool


@dataclass(frozen=True)
class Cut:
    """Between two stages: the call with which the first of them ends, and what the second needs."""

    after: Key
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Tied:
    """One parameter that several stages use: the sum of their gradients is its gradient."""

    names: tuple[str, ...]
    """All names that the module tree has for it; the first is its name in a checkpoint."""
    stages: tuple[int, ...]


@dataclass(frozen=True)
class Stages:
    """A model in stages. Equal on all ranks if model, pass, costs and speeds are."""

    units: tuple[Unit, ...]
    counts: tuple[int, ...]
    """How many units each stage has."""
    cuts: tuple[Cut, ...]
    calls: Mapping[Key, int]
    """The stage of every call of a layer that has parameters, or buffers that change."""
    parameters: Mapping[str, tuple[int, ...]]
    """The stages that use a parameter. One that the pass does not use lies on the first stage."""
    buffers: Mapping[str, tuple[int, ...]]
    """The same of the buffers of layers in units. All other buffers are on every stage."""
    tied: tuple[Tied, ...]
    writes: bool
    """Code between the layers writes into their results."""
    draws: bool
    """Code between the layers draws random numbers, which must be the same on all stages."""
    speeds: tuple[float, ...] = ()
    """Of the workers of each stage, beside the fastest; empty: taken as equal."""

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def gates(self) -> set[str]:
        """The modules whose calls are computed, stood in for, or exchanged with another stage."""
        points = [point.call for cut in self.cuts for point in cut.points]
        return {name for name, _ in (*self.calls, *points, *(cut.after for cut in self.cuts))}

    def stage_of(self, unit: int) -> int:
        """On which stage a unit lies."""
        return next(stage for stage, end in enumerate(accumulate(self.counts)) if unit < end)

    def to_dict(self) -> list[dict[str, Any]]:
        """The units with their stages, ready for JSON."""
        return [{**asdict(unit), "stage": self.stage_of(place)} for place, unit in enumerate(self.units)]

    def __str__(self) -> str:
        """A table: unit, stage, parameters, cost."""
        rows = [("unit", "stage", "parameters", "cost", "sent on")]
        ends = list(accumulate(self.counts))
        for place, unit in enumerate(self.units):
            sent = plural(len(self.cuts[ends.index(place + 1)].points), "tensor") if place + 1 in ends[:-1] else ""
            rows.append((unit.name, str(self.stage_of(place)), f"{unit.parameters:,}", f"{unit.cost:.4g}", sent))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            f"{row[0]:<{widths[0]}}  "
            + "  ".join(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
            for row in rows
        )


def plan_stages(
    model: nn.Module,
    run: Callable[[], Any],
    stages: int | Sequence[int] | Sequence[str],
    *,
    costs: str | Sequence[float] = "time",
    speeds: Sequence[float] | None = None,
) -> Stages:
    """Cut `model` into stages, by what happens when `run` computes the loss of a small batch with it.

    `stages` is how many, balanced by cost; or how many units each has; or the name of the first unit of each, where
    that of the first stage may be any. `costs` are those of the units: `"time"`, measured here, `"parameters"`, or
    numbers. `speeds` are those of the stages' devices.
    Measured costs differ between ranks: one rank measures, and hands its costs to the others.
    The model must have its device and number format already, and be in training mode; it is not changed.
    """
    units = find_units(record(model, run))
    names = _names(units)
    sizes = _sizes(units)
    if isinstance(costs, str):
        if costs not in ("time", "parameters"):
            raise PlanError(f"costs={costs!r}: expected time, parameters, or a number for each unit")
        costs = measure(model, run, units.segments) if costs == "time" else _sizes(units, shared=True)
    if len(costs) != len(names):
        raise PlanError(f"{plural(len(costs), 'cost')} for {plural(len(names), 'unit')}: {', '.join(names)}")
    counts = _counts(stages, names, units.reasons, lambda number: balance(costs, number, speeds))
    rows = zip(names, sizes, costs, strict=True)
    made = tuple(Unit(name, size, float(cost)) for name, size, cost in rows)
    return _stages(units, made, counts, tuple(speeds or ()))


def _names(units: Units) -> list[str]:
    """Of the units; from the second call of a module on, with its number."""
    numbers = dict(_keys(units.calls))
    keys = [numbers[id(segment.first)] for segment in units.segments]
    return [(name or "model") if not number else f"{name}#{number + 1}" for name, number in keys]


def _keys(calls: Sequence[Call]) -> Iterator[tuple[int, Key]]:
    """By `id`, which call of its module a call is."""
    seen: Counter[str] = Counter()
    for call in calls:
        yield id(call), (call.name, seen[call.name])
        seen[call.name] += 1


def _sizes(units: Units, *, shared: bool = False) -> list[int]:
    """Parameters of each unit; those that several use count for the first alone, or if `shared`, for each."""
    seen: set[int] = set()
    sizes = []
    for segment in units.segments:
        used = {id(one): one.numel() for call in segment.calls for one in call.module.parameters()}
        sizes.append(sum(size for one, size in used.items() if shared or one not in seen))
        seen.update(used)
    return sizes


def _counts(
    stages: int | Sequence[int] | Sequence[str],
    names: Sequence[str],
    reasons: Mapping[str, str],
    balanced: Callable[[int], tuple[int, ...]],
) -> tuple[int, ...]:
    """How many units each stage has."""
    known = f"The model has {plural(len(names), 'unit')}: {', '.join(names)}"
    number = stages if isinstance(stages, int) else len(stages)
    if number > len(names) or number < 1:
        why = "".join(f". It cannot be cut behind {name!r}: {reason}" for name, reason in list(reasons.items())[:3])
        raise ModelError(
            f"{plural(number, 'stage')}: expected 1 to {len(names)}. {known}{why}. Choose a smaller pipeline= in the "
            "plan; or, with schedule=interleaved, which has two stages for each of its workers, another schedule"
        )
    if isinstance(stages, int):
        return balanced(stages)
    if all(isinstance(one, int) for one in stages):
        counts = tuple(int(one) for one in stages)
        if min(counts) < 1 or sum(counts) != len(names):
            raise PlanError(f"stages={list(counts)}: expected positive numbers that add up to {len(names)}. {known}")
        return counts
    starts = [0]
    for given in map(str, stages[1:]):
        place = next((at for at, name in enumerate(names) if name == given or name.startswith(f"{given}.")), None)
        if place is None:
            hint = did_you_mean(given, names, "{!r}")
            raise PlanError(f"stages names {given!r}, but the model has no such unit.{hint} {known}")
        if place <= starts[-1]:
            raise PlanError(
                f"stages names {given!r} for a stage, but the stage before it begins there or later. {known}"
            )
        starts.append(place)
    return tuple(end - start for start, end in zip(starts, [*starts[1:], len(names)], strict=True))


def _stages(units: Units, rows: tuple[Unit, ...], counts: tuple[int, ...], speeds: tuple[float, ...]) -> Stages:
    """The value: which call, parameter and buffer lies where."""
    keys = dict(_keys(units.calls))
    ends = [units.segments[end - 1] for end in accumulate(counts)][:-1]
    times = [segment.calls[-1].end for segment in ends]

    def stage_at(time: int) -> int:
        return sum(time > end for end in times)

    parameters, buffers = _places(units, stage_at)
    outside = units.outside()
    stages = Stages(
        units=rows,
        counts=counts,
        cuts=tuple(_cut(segment, keys) for segment in ends),
        calls={keys[id(call)]: stage_at(call.begin) for call in units.calls if call.stateful},
        parameters=parameters,
        buffers=buffers,
        tied=_tied(units.trace.model, parameters),
        writes=any(op.writes for op in outside),
        draws=any(op.draws for op in outside),
        speeds=speeds,
    )
    _check_shared_state(units, buffers)
    return stages


def _cut(segment: Segment, keys: Mapping[int, Key]) -> Cut:
    points = (Point(keys[id(one.call)], one.leaf, one.call.gradients[one.leaf]) for one in segment.crossing)
    return Cut(keys[id(segment.calls[-1])], tuple(points))


def slots(module: nn.Module, *, buffers: bool = False) -> Iterator[tuple[str, nn.Module, str, Any]]:
    """Every place of a parameter in a module tree, each once: its name, the module that has it, its name there."""
    for prefix, part in module.named_modules():
        for name, tensor in (part._buffers if buffers else part._parameters).items():
            if tensor is not None:
                yield f"{prefix}.{name}".lstrip("."), part, name, tensor


def _places(
    units: Units, stage_at: Callable[[int], int]
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """The stages that use each parameter, and each buffer of a layer in a unit."""
    trace = units.trace
    of_part: dict[nn.Module, set[int]] = {}
    for call in units.calls:
        for part in call.module.modules() if call.stateful else ():
            of_part.setdefault(part, set()).add(stage_at(call.begin))
    elsewhere: dict[int, set[int]] = {}  # parameters that are used outside of the layer that has them
    for op in trace.ops:
        for value in op.inputs:
            if value in trace.parameters:
                user, parameter = units.holder(op.time), trace.parameters[value]
                if user is None or not any(parameter is one for one in user.module.parameters()):
                    elsewhere.setdefault(id(parameter), set()).add(stage_at(op.time))
    parameters = {
        name: tuple(sorted(of_part.get(part, set()) | elsewhere.get(id(tensor), set()))) or (0,)
        for name, part, _, tensor in slots(trace.model)
    }
    buffers = {
        name: tuple(sorted(of_part[part])) for name, part, _, _ in slots(trace.model, buffers=True) if part in of_part
    }
    return parameters, buffers


def _tied(model: nn.Module, parameters: Mapping[str, tuple[int, ...]]) -> tuple[Tied, ...]:
    names: dict[int, list[str]] = {}
    for name, _, _, tensor in slots(model):
        names.setdefault(id(tensor), []).append(name)
    tied = (
        Tied(tuple(one), tuple(sorted({stage for name in one for stage in parameters[name]}))) for one in names.values()
    )
    return tuple(one for one in tied if len(one.stages) > 1)


def _check_shared_state(units: Units, buffers: Mapping[str, tuple[int, ...]]) -> None:
    for name, part, _, _ in slots(units.trace.model, buffers=True):
        if part in units.trace.changed and len(buffers.get(name, ())) > 1:
            raise ModelError(
                f"buffer {name!r} changes in the forward pass, and its layer is called on stages {buffers[name]}: each "
                "of them would have its own. Give each place a layer of its own, or let one stage have both calls"
            )
