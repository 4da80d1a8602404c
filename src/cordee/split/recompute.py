"""Activations that are computed again in the backward pass instead of kept: plan key `recompute`.

A block keeps its input alone, and its backward pass begins with its forward pass (`torch.utils.checkpoint`). With
`selective`, it also keeps the results of matrix products, convolutions and attention, and computes the rest again.

The repetition sees what the first pass saw: random states (also of NumPy and Python), buffers as they were before it,
and what was agreed with other workers (`group/replay.py`). It leaves no trace: running statistics move once.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from cordee.core.errors import ModelError
from cordee.group.replay import Tape

Key = tuple[nn.Module, str, bool]
"""A buffer: its module, its name there, and whether the module is in training mode."""
KEPT = (
    *("mm", "addmm", "bmm", "baddbmm", "convolution"),
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
)
"""Operations whose results `selective` keeps: they take most of the time of a block."""


def recompute(model: nn.Module, how: str, *, compiled: bool = False, gates: Collection[str] = ()) -> list[str]:
    """Let the blocks of a model compute their activations again, in place; `how` is the plan's. Names the blocks.

    `gates` are modules between which stages may end: a block lies within one of them, or is one.
    """
    if how == "none":
        return []
    blocks, rows = find_blocks(model, gates)
    if not blocks:
        expected = "an nn.ModuleList or nn.Sequential of several layers, or modules that hold layers"
        todo = "Put its layers into an nn.Sequential"
        if gates:
            expected = "layers of the pipeline that hold several layers"
            todo = "Put layers that belong together into a module with a forward of its own"
        raise ModelError(
            f"recompute={how} computes blocks of layers again, but this {type(model).__name__} has none: expected "
            f"{expected}. {todo}, or leave recompute out of the plan"
        )
    for module in model.modules():  # a cache for generation would take the keys of a repetition for further ones
        config: Any = getattr(module, "config", None)
        if getattr(config, "use_cache", None) is True:
            config.use_cache = False
    for name, block in blocks.items():
        if compiled and any(hasattr(type(one).forward, "_torchdynamo_disable") for one in block.modules()):
            raise ModelError(
                f"recompute={how} does not work with compile=true here: block {name!r} has BatchNorm over the global "
                "batch, which asks other workers within it and is not compiled. Leave one of "
                "them out of the plan"
            )
        of_class = {"selective": how == "selective", "lives": {}, "__module__": type(block).__module__}
        kind = _RecomputedRow if rows else _Recomputed
        block.__class__ = type(type(block).__name__, (kind, type(block)), of_class)
    return list(blocks)


def pieces(model: nn.Module) -> int:
    """Into how many parts, computed again one after the other, a prepared model falls; 1 without `recompute`."""
    blocks = [one for one in model.modules() if isinstance(one, _Recomputed)]
    return sum(len(one.rows()) if isinstance(one, _RecomputedRow) else 1 for one in blocks) or 1


def find_blocks(model: nn.Module, gates: Collection[str] = ()) -> tuple[dict[str, nn.Module], bool]:
    """By name: layers of one kind that are members of one list; without such lists, rows of layers; else parts.

    None of them holds one of `gates`; where nothing else is left, these are the blocks.

    True, if they are rows (`nn.Sequential`), which are computed again in pieces. A single layer is no block: all that
    it keeps is its input.
    """
    names = {module: name for name, module in model.named_modules()}
    lists = [one for one in names if isinstance(one, nn.ModuleList | nn.Sequential)]
    members = [member for one in lists for member in _repeated(one)]
    rows = [one for one in lists if type(one) is nn.Sequential and len(one) > 2]
    parts = [one for one in model.children() if _holds_layers(one)]
    gated = [one for one, name in names.items() if name in gates]
    last = [one for one in gated if _holds_layers(one)]
    found = [_closed(some, set(gated)) for some in (members, rows, parts, last)]
    chosen = next((some for some in found if some), [])
    inside = {part for one in chosen for part in one.modules() if part is not one}
    blocks = [one for one in chosen if one not in inside and any(p.requires_grad for p in one.parameters())]
    return {names[one]: one for one in blocks if "forward" not in vars(one)}, chosen is found[1]


def _closed(modules: Iterable[nn.Module], gated: Set[nn.Module]) -> list[nn.Module]:
    """Those inside of which no stage may end."""
    return [one for one in modules if not any(part in gated for part in one.modules() if part is not one)]


def _repeated(layers: nn.ModuleList | nn.Sequential) -> list[nn.Module]:
    """Members that hold layers, and have others of their kind beside them."""
    members = [one for one in layers if _holds_layers(one)]
    kinds = [type(one) for one in members]
    return [one for one in members if kinds.count(type(one)) > 1]


def _holds_layers(module: nn.Module) -> bool:
    own = not type(module).__module__.startswith("torch.nn.") and any(True for _ in module.parameters())
    return own or any(True for _ in module.children())


class _Recomputed(nn.Module):
    """Takes the place of a block's class; parameters, buffers and names stay."""

    selective: bool
    lives: dict[Key, bool]
    """Of each buffer that a forward pass was seen with: whether one changed it."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return _again(super().forward, self, [self], args, kwargs)


class _RecomputedRow(_Recomputed):
    """The same for a row of layers, in pieces: as many as the root of their number."""

    def rows(self) -> list[list[nn.Module]]:
        """The pieces."""
        layers = list(self.children())
        size = math.ceil(len(layers) / math.isqrt(len(layers)))
        return [layers[first : first + size] for first in range(0, len(layers), size)]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        (result,) = args
        for piece in self.rows():
            result = _again(partial(_in_turn, piece), self, piece, (result,), kwargs)
        return result


def _in_turn(layers: Sequence[nn.Module], value: Any) -> Any:
    for layer in layers:
        value = layer(value)
    return value


def _again(forward: Callable[..., Any], block: _Recomputed, layers: Sequence[nn.Module], args: Any, kwargs: Any) -> Any:
    """Call `forward`, whose activations are computed again; `layers` have its buffers."""
    if not (torch.is_grad_enabled() and _switch.on):
        return forward(*args, **kwargs)
    if torch.compiler.is_compiling():  # a compiled pass has no side effects to be repeated
        contexts: dict[str, Any] = {"context_fn": _selective} if block.selective else {}
    else:
        contexts = {"context_fn": partial(_contexts, block, layers)}
    return checkpoint(forward, *args, use_reentrant=False, **contexts, **kwargs)


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    kept = operation.overloadpacket.__name__ in KEPT
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _selective() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    return create_selective_checkpoint_contexts(_policy)  # type: ignore[no-any-return, no-untyped-call]


class _Switch:
    on = True


_switch = _Switch()


@contextmanager
def keeping_all() -> Iterator[None]:
    """In here blocks keep their activations, so that they can be counted."""
    _switch.on = False
    try:
        yield
    finally:
        _switch.on = True


# ------------------------------------------------------------- a pass and its repetitions


def _contexts(
    block: _Recomputed, layers: Sequence[nn.Module]
) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """What surrounds the first pass, and each repetition."""
    first, again = _selective() if block.selective else (None, None)
    seen = _First(block, layers, first)
    return seen, _Repeated(seen, again)


class _First:
    """Around the first pass: notes what it sees."""

    def __init__(self, block: _Recomputed, layers: Sequence[nn.Module], inner: AbstractContextManager[Any] | None):
        self._block, self._layers, self._inner = block, layers, inner
        self.tape = Tape()
        self.draws: tuple[Any, Any] = (None, None)
        self.buffers: dict[Key, Tensor] = {}
        """Those that the pass changes, as they were before it."""

    def __enter__(self) -> None:
        self.draws = random.getstate(), np.random.get_state()
        lives = self._block.lives
        self._before = {key: (buffer, buffer._version) for key, buffer in _buffers_of(self._layers)}
        self.buffers = {key: one.clone() for key, (one, _) in self._before.items() if lives.get(key, True)}
        self._stack = ExitStack()
        self._stack.enter_context(self.tape.playing())
        if self._inner is not None:
            self._stack.enter_context(self._inner)

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        self._stack.__exit__(kind, *error)
        if kind is not None:
            return
        lives, now = self._block.lives, dict(_buffers_of(self._layers))
        for key, copy in self.buffers.items():  # BatchNorm changes its buffers without counting up their version
            lives[key] = lives.get(key) or now.get(key) is None or not torch.equal(copy, now[key])
        for key, (buffer, version) in self._before.items():
            if not lives[key] and (now.get(key) is not buffer or buffer._version != version):
                raise ModelError(
                    f"buffer {key[1]!r} of a {type(key[0]).__name__} changed in a forward pass, though it did not in "
                    "the first one: what it was before is not known, so its block cannot be computed again. Leave "
                    "recompute out of the plan"
                )
        self.buffers = {key: copy for key, copy in self.buffers.items() if lives[key]}
        self._before = {}


class _Repeated:
    """Around a repetition: shows it what the first pass saw, and undoes what it did. May be entered again."""

    def __init__(self, first: _First, inner: AbstractContextManager[Any] | None) -> None:
        self._first, self._inner = first, inner

    def __enter__(self) -> None:
        self._draws = random.getstate(), np.random.get_state()
        _set_draws(self._first.draws)
        self._now = {key: key[0]._buffers.get(key[1]) for key in self._first.buffers}
        for (module, name, _), before in self._first.buffers.items():
            module._buffers[name] = before.clone()
        self._stack = ExitStack()
        self._stack.enter_context(self._first.tape.playing())
        if self._inner is not None:
            self._stack.enter_context(self._inner)

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)
        for (module, name, _), buffer in self._now.items():
            module._buffers[name] = buffer
        self._now = {}
        _set_draws(self._draws)


def _set_draws(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])


def _buffers_of(layers: Iterable[nn.Module]) -> Iterator[tuple[Key, Tensor]]:
    for layer in layers:
        for module in layer.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    yield (module, name, module.training), buffer
