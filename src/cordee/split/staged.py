"""A model of which this process has some stages: runs them one micro-batch at a time, forward and backward.

The user's own forward code runs on every stage. Layers of other stages give placeholders, or what was received of them;
behind the last layer of the stage the code is left. No communication happens here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from cordee.core.errors import ModelError, UsageError
from cordee.core.words import plural
from cordee.group.sliced import local_of
from cordee.split.halves import backward_to_inputs
from cordee.split.layers import apart
from cordee.split.placeholders import Shape, StandIns, drop, refuse_unplanned
from cordee.split.record import random_state, set_random_state
from cordee.split.stages import Key, Point, Stages, slots


class _Left(BaseException):
    """Leaves the user's forward code behind the last layer of a stage; no `except Exception` catches it."""


class _Alias(torch.autograd.Function):
    """The same numbers as a tensor that code may write into, though the given one is a leaf or a view."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.data

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


@dataclass
class Passed:
    """What the forward pass of a stage gave, for one micro-batch."""

    stage: int
    outputs: tuple[Tensor, ...]
    """To be sent to the next stage, without a graph; empty on the last one."""
    result: Any
    """What `run` returned on the last stage, as the loss; None on others."""
    inputs: tuple[Tensor, ...]
    """The received tensors as leaves of the graph."""
    roots: list[Tensor] = field(default_factory=list)
    """What the backward pass starts from: outputs that have gradients, or the loss."""
    places: tuple[int, ...] = ()
    """Which of the gradients that come back belongs to each root."""
    weights: Callable[[], None] | None = None
    """The second half of a backward pass that was split."""


@dataclass
class _Run:
    """One pass under way."""

    stage: int | None
    """None: no layer is computed, to find out shapes."""
    entering: dict[Key, dict[int, Tensor]]
    leaving: dict[Key, list[tuple[int, Point]]]
    after: Key | None
    seed: int | None = None
    """Of what is drawn in the pass; None: as the process goes on."""
    taken: dict[int, Tensor] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    inside: bool = False
    left: bool = False


@dataclass
class _Gate:
    """Stands before the `forward` of a layer."""

    staged: Staged
    name: str
    module: nn.Module
    forward: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        run = self.staged.run
        if run is None:
            self.staged.refuse_elsewhere(self.name)
        if run is None or run.inside:
            return self.forward(*args, **kwargs)
        return self.staged.pass_gate(run, self, (args, kwargs))


class Staged:
    """The stages of a model that this process has. Parameters and buffers of other stages are dropped from it.

    The module tree keeps its names, and `model.parameters()` are just those of the stages here. To be made once the
    model has its device and number format, and before its optimizer.
    """

    def __init__(self, model: nn.Module, stages: Stages, mine: Sequence[int]) -> None:
        """`mine` are the numbers of this process's stages; several for interleaved schedules."""
        self.model, self.stages, self.mine = model, stages, tuple(mine)
        self.run: _Run | None = None
        refuse_unplanned(model, stages.gates, lambda: self.run is not None and not self.run.inside)
        for buffers, places in ((False, stages.parameters), (True, stages.buffers)):
            for name, part, last, _ in list(slots(model, buffers=buffers)):
                if name in places and not set(self.mine).intersection(places[name]):
                    drop(part, last)
        shapes = {(part, last): Shape.of(local_of(one)) for _, part, last, one in slots(model)}
        self._stand_ins = StandIns(shapes, written=stages.writes)
        modules = dict(model.named_modules())
        for name in stages.gates:
            module = modules[name]
            module.forward = _Gate(self, name, module, module.forward)

    def owned(self, stage: int | None = None) -> dict[str, nn.Parameter]:
        """The parameters of one stage of this process, or of all of them, by name."""
        wanted = set(self.mine if stage is None else (stage,))
        found = dict(self.model.named_parameters())
        return {name: one for name, one in found.items() if wanted.intersection(self.stages.parameters[name])}

    def refuse_elsewhere(self, name: str) -> None:
        """Refuse a call outside of a pass of a layer that lies on other stages: it has no numbers here."""
        stages = {stage for (called, _), stage in self.stages.calls.items() if called == name}
        if stages and stages.isdisjoint(self.mine):
            raise UsageError(
                f"layer {name!r} was called, which is on stage {min(stages)} of the pipeline and has no weights on "
                "this worker. Compute outputs with cordee.predict(model, data, session), which all workers call "
                "together"
            )

    # ------------------------------------------------------------- forward

    def forward(
        self, stage: int, run: Callable[[], Any], received: Sequence[Tensor] = (), *, draw: int | None = None
    ) -> Passed:
        """One micro-batch on one stage: `run` computes the loss with the model, as it would in one process.

        `received` are the outputs of the stage before. `draw` seeds what is drawn: between layers the same on all
        stages, inside of layers on each its own. It is another one for each micro-batch.
        """
        assert stage in self.mine, f"stage {stage} is not one of {self.mine}"
        assert draw is not None or not self.stages.draws, "code between the layers draws: give `draw`"
        points = self.stages.cuts[stage - 1].points if stage else ()
        assert len(received) == len(points), f"stage {stage} takes {len(points)} tensors, not {len(received)}"
        learns = torch.is_grad_enabled()
        inputs = tuple(
            one.detach().requires_grad_(point.requires_grad and learns)
            for one, point in zip(received, points, strict=True)
        )
        entering: dict[Key, dict[int, Tensor]] = {}
        for point, leaf in zip(points, inputs, strict=True):
            entering.setdefault(point.call, {})[point.leaf] = leaf
        cut = self.stages.cuts[stage] if stage + 1 < len(self.stages) else None
        if not self.stages.draws:  # nothing has to be the same on other stages
            draw = draw + 1 + stage if draw else None
        way = _Run(stage, entering, _by_call(cut.points if cut else ()), cut.after if cut else None, draw)
        result = self._go(way, run)
        if way.entering:
            raise self._not_called(next(iter(way.entering)))
        if cut is None:
            learnt = isinstance(result, Tensor) and result.requires_grad
            return Passed(stage, (), result, inputs, [_alias(result)] if learnt else [])
        taken = [way.taken[place] for place in range(len(cut.points))]
        sent = [place for place, point in enumerate(cut.points) if point.requires_grad]
        roots = [(place, taken[at]) for place, at in enumerate(sent) if taken[at].requires_grad]
        outputs = tuple(one.detach().contiguous() for one in taken)
        return Passed(stage, outputs, None, inputs, [root for _, root in roots], tuple(place for place, _ in roots))

    def specs(self, stage: int, run: Callable[[], Any]) -> tuple[tuple[Shape, bool], ...]:
        """What `stage` will receive for the micro-batch of `run`, and whether it sends a gradient of it back.

        Computes no layer, but runs the code between them: what depends on shapes alone can be remembered.
        """
        if not stage:
            return ()
        cut = self.stages.cuts[stage - 1]
        way = _Run(None, {}, _by_call(cut.points), cut.after, 0)
        with torch.no_grad(), apart():
            self._go(way, run)
        return tuple((Shape.of(way.taken[place]), point.requires_grad) for place, point in enumerate(cut.points))

    def _go(self, way: _Run, run: Callable[[], Any]) -> Any:
        """Run the user's code up to the end of the stage; what it returned, if that was reached."""
        assert self.run is None, "one pass at a time"
        self.run = way
        try:
            with self._drawing(way.seed):
                result = run()
        except _Left:
            return None
        finally:
            self.run = None
        if way.after is not None:
            raise self._not_called(way.after)
        return result

    def pass_gate(self, run: _Run, gate: _Gate, given: Any) -> Any:
        """A layer is called in a pass: compute it, or stand in for it; take in and out what crosses a cut."""
        key = (gate.name, run.seen[gate.name])
        run.seen[gate.name] += 1
        stage = self.stages.calls.get(key)
        if stage is None and any(name == gate.name for name, _ in self.stages.calls):
            raise ModelError(
                f"layer {gate.name!r} is called {key[1] + 1} times, but {plural(key[1], 'time')} when the stages were "
                "planned. Let the forward pass call the same layers for every batch"
            )
        run.inside = True
        try:
            if stage is None:
                result = gate.forward(*given[0], **given[1])
            elif stage == run.stage:
                seed = run.seed + sum(run.seen.values()) if self.stages.draws and run.seed is not None else None
                with self._drawing(seed):  # of each layer: slices draw the same there, whatever the one before drew
                    result = gate.forward(*given[0], **given[1])
            else:
                result = self._stand_ins.result(gate.name, gate.module, gate.forward, given)
        finally:
            run.inside = False
        if key in run.entering:
            result = _replaced(result, run.entering.pop(key))
        if key in run.leaving:
            self._take(run, gate, result, run.leaving[key])
        if key == run.after:
            raise _Left
        return result

    def _take(self, run: _Run, gate: _Gate, result: Any, points: Sequence[tuple[int, Point]]) -> None:
        leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        for place, point in points:
            if point.leaf >= len(leaves):
                raise ModelError(
                    f"layer {gate.name!r} returns {plural(len(leaves), 'tensor')}, but more when the stages were "
                    "planned. Let it return the same for every batch"
                )
            one = leaves[point.leaf]
            if one.requires_grad and not point.requires_grad and run.stage is not None:
                raise ModelError(
                    f"what layer {gate.name!r} returns requires gradients now, but did not when the stages were "
                    "planned. Unfreeze layers before the training starts, not in the middle of it"
                )
            # Code behind it may write into it. Else the same memory, but a tensor of its own, which can be detached.
            run.taken[place] = one.clone() if self.stages.writes else _alias(one)

    @contextmanager
    def _drawing(self, seed: int | None) -> Iterator[None]:
        """Draw by a seed in here, and afterwards as before; None: as before in here too."""
        if seed is None:
            yield
            return
        outer = random_state(self.model)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            set_random_state(self.model, outer)

    def _not_called(self, key: Key) -> ModelError:
        return ModelError(
            f"layer {key[0]!r} was called {plural(key[1] + 1, 'time')} when the stages were planned, but not in this "
            "pass. Let the forward pass call the same layers for every batch"
        )

    # ------------------------------------------------------------- backward

    def backward(self, passed: Passed, gradients: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
        """Add the gradients of this stage's parameters; those of its inputs, to be sent to the stage before.

        `gradients` are those that the next stage sent: of the outputs that `specs` says send one back.
        """
        if passed.roots:
            torch.autograd.backward(passed.roots, _chosen(passed, gradients))
        passed.roots.clear()
        return _gradients(passed)

    def backward_inputs(self, passed: Passed, gradients: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
        """The first half of `backward`: the gradients of the inputs alone, for schedules that send them early."""
        chosen = _chosen(passed, gradients)
        if not passed.roots or not any(one.requires_grad for one in passed.inputs):
            roots = list(passed.roots)
            passed.weights = (lambda: torch.autograd.backward(roots, chosen)) if roots else (lambda: None)
            return _gradients(passed)
        own = list(self.owned(passed.stage).values())
        given = [torch.ones_like(root) if one is None else one for root, one in zip(passed.roots, chosen, strict=True)]
        leaves = [one for one in passed.inputs if one.requires_grad]
        passed.weights = backward_to_inputs(passed.roots, given, leaves, own)
        return _gradients(passed)

    def backward_weights(self, passed: Passed) -> None:
        """The second half: add the gradients of the parameters, without running hooks on them."""
        assert passed.weights is not None, "backward_inputs comes first"
        passed.weights()
        passed.weights = None
        passed.roots.clear()


def _alias(tensor: Tensor) -> Tensor:
    return _Alias.apply(tensor)  # type: ignore[no-untyped-call,no-any-return]


def _by_call(points: Sequence[Point]) -> dict[Key, list[tuple[int, Point]]]:
    found: dict[Key, list[tuple[int, Point]]] = {}
    for place, point in enumerate(points):
        found.setdefault(point.call, []).append((place, point))
    return found


def _replaced(result: Any, leaves: dict[int, Tensor]) -> Any:
    """`result` with received tensors in the places of its own."""
    flat, tree = pytree.tree_flatten(result)
    places = [place for place, one in enumerate(flat) if isinstance(one, Tensor)]
    for leaf, tensor in leaves.items():
        flat[places[leaf]] = _alias(tensor)
    return pytree.tree_unflatten(flat, tree)


def _chosen(passed: Passed, gradients: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradient of each root; None for the loss."""
    return [gradients[place] for place in passed.places] if passed.outputs else [None for _ in passed.roots]


def _gradients(passed: Passed) -> tuple[Tensor, ...]:
    """Of the inputs that have one, zeros where nothing depends on them; they are let go."""
    found = tuple(torch.zeros_like(one) if one.grad is None else one.grad for one in passed.inputs if one.requires_grad)
    for one in passed.inputs:
        one.grad = None
    return found
