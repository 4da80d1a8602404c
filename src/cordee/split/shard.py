"""Sharding: workers hold the state of one replica together, and each computes a share of the batch of its own.

torch's FSDP2 does the work. Parameters, gradients and the optimizer's state lie in equal parts on the workers of a
replica. A unit, a block of the model, is gathered when it is called, and its gradients are added up over the workers
when its backward pass ends, so that each keeps its part of the sum.

`params` lets go of a unit's parameters after its forward pass, and gathers them again for its backward pass.
`gradients` keeps them until then. `optimizer` also keeps the gradients of all micro-batches whole, and adds them up
with the last one. Sums, not means: the loss of a share is weighted by its samples already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils import _pytree as pytree

from cordee.core.errors import ModelError
from cordee.group.team import Team, open_device_mesh
from cordee.split.exchange import Gather, ScatterSum
from cordee.split.units import is_list

LEAST = 1 / 16
"""Of all parameters: a single layer with fewer is not gathered by itself, but with the rest of the model."""

_held: WeakKeyDictionary[nn.Module, dict[str, nn.Parameter]] = WeakKeyDictionary()
"""By sharded model: the parameters that its optimizer has, also while gathered ones stand in their place."""


class Sharded(NamedTuple):
    """How a model was sharded."""

    units: tuple[str, ...]
    """The blocks that are gathered one by one; the rest of the model is another one."""
    whole: tuple[str, ...]
    """Parameters that every worker holds: single numbers, and those of another number format than most."""


class Sharding:
    """The models of a session whose state is sharded."""

    def __init__(self, team: Team, word: str) -> None:
        """None yet; `word` is the plan's."""
        self._team, self.word = team, word
        self.of: dict[Any, Sharded] = {}
        """By model, how it was sharded."""
        self._outputs: list[tuple[GradientEdge, Callable[[], Tensor]]] = []
        """What the models gave since the last backward pass, and zeros in its shape."""

    def place(self, model: nn.Module, called: AbstractSet[nn.Module] | None = None) -> None:
        """Keep this worker's part of a model that is the same on all workers; `called`: the modules that it calls."""
        from torch.distributed.fsdp import fully_shard

        _refuse_sparse(model)
        units, whole = find_units(model, called), _kept_whole(model)
        aside = set(whole.values())
        for parameter in model.parameters():
            if not (parameter in aside or hasattr(parameter, "placements")):
                parameter.data = parameter.data.contiguous()
        settings: dict[str, Any] = {"mesh": open_device_mesh(self._team)["shard"], "ignored_params": aside}
        for name in units:
            fully_shard(model.get_submodule(name), reshard_after_forward=self.word == "params", **settings)
        root: Any = fully_shard(model, reshard_after_forward=False, **settings)
        for unit in units_of(model):
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)
            unit.set_custom_all_gather(Gather(self._team))
            unit.set_custom_reduce_scatter(ScatterSum(self._team))
        if self._team.stages.size == 1:
            root.register_forward_hook(self._gave)
        _held[root] = dict(root.named_parameters())
        self.of[root] = Sharded(units, tuple(whole))

    def begin(self, *, last: bool) -> None:
        """A backward pass follows; `last`: of its step."""
        if self.word == "optimizer":
            for model in self.of:
                model.set_requires_gradient_sync(last)
                model.set_reshard_after_backward(last)
                model.set_is_last_backward(last)

    def end(self) -> None:
        """The backward pass is over."""
        self._outputs.clear()

    def outputs(self, loss: Tensor) -> list[tuple[GradientEdge, Tensor]]:
        """What the models gave for this loss, each with zeros in its shape.

        From there a share that weighs nothing takes part in all sums of the backward pass.
        """
        nodes = _nodes(loss)
        return [(edge, nought()) for edge, nought in self._outputs if edge.node in nodes]

    def reshard(self) -> None:
        """Let go of what is gathered: after a regrouping it may be zeros, which stood in for a lost worker's part."""
        for model in self.of:
            reshard(model)

    def forget(self) -> None:
        """Drop gradients that no pass has added up yet."""
        self._outputs.clear()
        for model in self.of:
            for parameter in model.parameters():
                parameter.grad = None

    def _gave(self, model: nn.Module, args: object, output: object) -> None:
        tensors = [one for one in pytree.tree_leaves(output) if isinstance(one, Tensor) and one.requires_grad]
        for one in tensors:
            nought = partial(torch.zeros, one.shape, dtype=one.dtype, device=one.device)
            self._outputs.append((get_gradient_edge(one), nought))


def _nodes(loss: Tensor) -> set[Node]:
    """All that the backward pass of a loss goes through."""
    found: set[Node] = set()
    ahead = [loss.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in found:
            found.add(node)
            ahead += [following for following, _ in node.next_functions]
    return found


def parameters_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """Those that its optimizer has, by name; of a sharded model, what this worker holds."""
    return _held.get(model) or dict(model.named_parameters())


def reshard(model: nn.Module) -> None:
    """Let go of what a sharded model has gathered for a forward pass that no backward pass follows."""
    for unit in units_of(model) if model in _held else ():
        unit.reshard()


def units_of(model: nn.Module) -> list[Any]:
    """What is gathered together of a sharded model: the rest of it, which is the model itself, then its blocks."""
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@contextmanager
def seeing_calls(model: nn.Module) -> Iterator[set[nn.Module]]:
    """In here, the modules are collected that are called: only these can be gathered when they are needed."""
    called: set[nn.Module] = set()
    see: Callable[..., None] = lambda module, *_: called.add(module)  # noqa: E731
    handles = [module.register_forward_hook(see, always_call=True) for module in model.modules()]
    try:
        yield called
    finally:
        for handle in handles:
            handle.remove()


def find_units(model: nn.Module, called: AbstractSet[nn.Module] | None = None) -> tuple[str, ...]:
    """The layers of its lists, by name: blocks, and large single layers; none shares a parameter with another one."""
    places = Counter(id(one) for module in model.modules() for one in module._parameters.values() if one is not None)
    total = sum(one.numel() for one in model.parameters())

    def fits(module: nn.Module) -> bool:
        own = Counter(id(one) for part in module.modules() for one in part._parameters.values() if one is not None)
        large = sum(one.numel() for one in module.parameters()) >= (0 if _is_block(module) else LEAST * total)
        apart = all(places[key] == count for key, count in own.items())
        return bool(own) and large and apart and (called is None or module in called)

    def walk(module: nn.Module, name: str) -> Iterator[str]:
        for child_name, child in module.named_children():
            path = f"{name}.{child_name}" if name else child_name
            if is_list(module) and fits(child) and not _is_row_of_blocks(child):
                yield path
            else:
                yield from walk(child, path)

    return tuple(dict.fromkeys(walk(model, "")))


def gathered_bytes(whole: Mapping[str, int], units: Sequence[str], word: str, *, micros: int, staged: bool) -> int:
    """What a worker holds for a moment beside its own part, at the most: parameters and gradients that are gathered.

    `whole`: bytes of each sharded parameter, gathered. The backward pass reads the unit ahead while it computes one.
    `staged`: of a pipeline, which gathers a stage at a time.
    """
    total = sum(whole.values())
    blocks = [sum(size for name, size in whole.items() if name.startswith(f"{unit}.")) for unit in units]
    rest = total - sum(blocks)
    pairs = [sum(blocks[at : at + 2]) for at in range(len(blocks))]
    parameters = rest + max(pairs, default=0) if word == "params" and not staged else total
    kept = staged or (word == "optimizer" and micros > 1)
    return parameters + (total if kept else rest + max(blocks, default=0))


def _is_block(module: nn.Module) -> bool:
    return any(True for _ in module.children())


def _is_row_of_blocks(module: nn.Module) -> bool:
    """Whether most of its parameters are in a list of blocks, which are units themselves."""
    lists = [one for one in module.modules() if is_list(one)]
    inside = {id(p): p for one in lists for child in one.children() if _is_block(child) for p in child.parameters()}
    return 2 * sum(p.numel() for p in inside.values()) > sum(p.numel() for p in module.parameters())


def _kept_whole(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that FSDP2 cannot shard together with the others."""
    formats = Counter(one.dtype for one in model.parameters() if one.is_floating_point())
    most = formats.most_common(1)[0][0] if formats else None
    return {name: one for name, one in model.named_parameters() if one.dim() == 0 or one.dtype != most}


def _refuse_sparse(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is True:
            raise ModelError(
                f"layer {name!r} has sparse gradients, which cannot be sharded. Make it with sparse=False, or leave "
                "shard= out of the plan"
            )
