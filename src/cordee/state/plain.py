"""Values as JSON with the tensors beside it: what lets a checkpoint do without pickle."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import torch

from cordee.core.errors import CheckpointError

# A JSON object whose single key begins with "$" stands for something that JSON has no word for.
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
    if isinstance(value, torch.Tensor):
        while name in tensors:  # a dict may hold both 1 and "1"
            name += "_"
        tensors[name] = take(value, name)
        return {_TENSOR: name}
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else {_FLOAT: repr(number)}
    if isinstance(value, (list, tuple, deque)):
        items = [encode(item, f"{name}.{index}", tensors, take) for index, item in enumerate(value)]
        return {_TUPLE: items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        return _encode_mapping(value, name, tensors, take)
    raise CheckpointError(
        f"{name} is a {type(value).__name__}, which a checkpoint cannot hold: it takes tensors, numbers, strings, "
        "None, lists, tuples and dicts of them (unpickling anything else could run foreign code). "
        "Keep such a value out of the state, or build it again from numbers when the state is loaded."
    )


def _encode_mapping(value: Mapping[Any, Any], name: str, tensors: dict[str, torch.Tensor], take: Take) -> Any:
    encoded = [
        [encode(key, name, tensors, take), encode(item, f"{name}.{key}", tensors, take)] for key, item in value.items()
    ]
    if isinstance(value, Counter):
        return {_COUNTER: encoded}
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return dict(encoded)
    return {_ITEMS: encoded}


def decode(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Undo `encode`; a tensor that is not in `tensors` is a `CheckpointError`."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(tag, content)] = value.items()
        if tag == _TENSOR:
            if content not in tensors:
                raise CheckpointError(
                    f"the checkpoint names the tensor {content} but does not hold it; use another one."
                )
            return tensors[content]
        if tag == _FLOAT:
            return float(content)
        if tag == _TUPLE:
            return tuple(decode(item, tensors) for item in content)
        if tag in (_ITEMS, _COUNTER):
            pairs = {decode(key, tensors): decode(item, tensors) for key, item in content}
            return Counter(pairs) if tag == _COUNTER else pairs
    return {key: decode(item, tensors) for key, item in value.items()}
