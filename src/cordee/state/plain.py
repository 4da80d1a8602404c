"""Values as JSON with the tensors beside it: what lets a checkpoint do without pickle."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import torch

from cordee.core.errors import CheckpointError

# A JSON object whose first key begins with "$" stands for something that JSON has no word for.
_TENSOR, _FLOAT, _TUPLE, _ITEMS, _COUNTER = "$tensor", "$float", "$tuple", "$items", "$counter"

Take = Callable[[torch.Tensor, str], torch.Tensor]
"""What becomes of a tensor with a name."""

SMALL_BYTES = 1 << 20
"""A tensor of fewer bytes is copied at once."""


def to_cpu(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """A contiguous copy of `tensor` in main memory that no later step changes."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype)
    return copy.copy_(_dense(tensor, name))


def as_it_is(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """The tensor itself, which must not change until it was written; a small one is copied all the same."""
    return _dense(tensor, name) if tensor.nbytes >= SMALL_BYTES else to_cpu(tensor, name)


def _dense(tensor: torch.Tensor, name: str) -> torch.Tensor:
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise CheckpointError(
            f"{name} is a {tensor.layout} tensor of {tensor.dtype}; a checkpoint holds dense tensors only. "
            "Convert it with .to_dense() or .dequantize() before it becomes part of the model or the optimizer."
        )
    return tensor.detach()


def encode(value: Any, name: str, tensors: dict[str, torch.Tensor], take: Take = to_cpu) -> Any:
    """Turn `value` into JSON; every tensor in it goes, by `take`, to `tensors` under a name that begins with `name`."""

    def leaf(value: Any, name: str) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        while name in tensors:  # a dict may hold both 1 and "1"
            name += "_"
        tensors[name] = take(value, name)
        return {_TENSOR: name}

    return to_json(value, name, leaf)


def to_json(value: Any, name: str, leaf: Callable[[Any, str], Any]) -> Any:
    """Turn `value`, which errors call `name`, into JSON; `leaf` gives what stands for a value, None for any other."""
    if (found := leaf(value, name)) is not None:
        return found
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else {_FLOAT: repr(number)}
    if isinstance(value, (list, tuple, deque)):
        items = [to_json(item, f"{name}.{index}", leaf) for index, item in enumerate(value)]
        return {_TUPLE: items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        pairs = [[to_json(key, name, leaf), to_json(item, f"{name}.{key}", leaf)] for key, item in value.items()]
        if isinstance(value, Counter):
            return {_COUNTER: pairs}
        is_plain = all(isinstance(key, str) and not key.startswith("$") for key in value)
        return dict(pairs) if is_plain else {_ITEMS: pairs}
    raise CheckpointError(
        f"{name} is a {type(value).__name__}, which a checkpoint cannot hold: it takes tensors, numbers, strings, "
        "None, lists, tuples and dicts of them (unpickling anything else could run foreign code). "
        "Keep such a value out of the state, or build it again from numbers when the state is loaded."
    )


def decode(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Undo `encode`; a tensor that is not in `tensors` is a `CheckpointError`."""

    def leaf(tag: str, content: Mapping[str, Any]) -> Any:
        if tag != _TENSOR:
            raise CheckpointError(f"the checkpoint holds {content!r}, which this version of Cordée does not know.")
        if content[tag] not in tensors:
            raise CheckpointError(
                f"the checkpoint names the tensor {content[tag]} but does not hold it; use another one."
            )
        return tensors[content[tag]]

    return from_json(value, leaf)


def from_json(value: Any, leaf: Callable[[str, Mapping[str, Any]], Any]) -> Any:
    """Undo `to_json`; `leaf` gives what an object with a tag of its own stands for."""
    if isinstance(value, list):
        return [from_json(item, leaf) for item in value]
    if not isinstance(value, dict):
        return value
    tag = next(iter(value), "")
    if not tag.startswith("$"):
        return {key: from_json(item, leaf) for key, item in value.items()}
    content = value[tag]
    if tag == _FLOAT:
        return float(content)
    if tag == _TUPLE:
        return tuple(from_json(item, leaf) for item in content)
    if tag in (_ITEMS, _COUNTER):
        pairs = {from_json(key, leaf): from_json(item, leaf) for key, item in content}
        return Counter(pairs) if tag == _COUNTER else pairs
    return leaf(tag, value)
