"""What is seen of a pass while it runs: every operator that reaches torch's dispatcher, backward ones too.

Losses that divide by something else than samples, such as cross-entropy with ignored targets or class weights, end in
torch's `nll_loss`, which says what it divided by. That explains a refusal; it is no reason for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from cordee.diagnose.preflight.draws import Draws, arguments_of, draws_by

_LOW = (torch.float16, torch.bfloat16)
_MEAN = 1  # as torch counts reductions
DEFAULT_IGNORED = -100
MOST_WEIGHTS = 100_000
MOST_TELLING = 16


@dataclass(frozen=True)
class Call:
    """One call of `nll_loss` with a mean: what it ignores, the weights of classes, and what it divided by."""

    ignored: int
    weights: tuple[float, ...] | None
    """None: all classes weigh the same."""
    total: float
    """The weight of all targets that count."""
    uneven: bool
    """Whether these targets weigh differently, so that the tests see what that does."""

    @property
    def telling_values(self) -> tuple[int, ...]:
        """Targets that make a difference: the ignored one, and one class of every weight, up to some."""
        if self.weights is None:
            return (self.ignored,)
        classes = {weight: place for place, weight in enumerate(self.weights)}
        return (self.ignored, *(classes[weight] for weight in sorted(classes, reverse=True)[:MOST_TELLING]))


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator of a pass: writes, draws, losses with a normaliser of their own, and coarse formats."""

    supports_higher_order_operators = True
    """They run unwatched; without this, torch would refuse them in here."""

    def __init__(self, draws: Draws, before_write: Callable[[Tensor], None]) -> None:
        """For one pass; `before_write` is called with what an operator is about to write to."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._draws, self._before_write = draws, before_write
        self.calls: list[Call] = []
        self.low = 0.0
        """The coarsest epsilon of formats below fp32 that were seen."""
        self.epsilon = torch.finfo(torch.float64).eps
        """That of fp32 if it was seen, else of fp64."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: to skip it torch would import it, which takes a second, and nothing is compiled in a pass."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs)
        name, draws, written = _kind(func)
        if written:
            given = arguments_of(func, args, kwargs)
            for value in (given.get(one) for one in written):
                for tensor in value if isinstance(value, list | tuple) else (value,):
                    if isinstance(tensor, Tensor):
                        self._before_write(tensor)
        result = self._draws.of_operator(name, func, args, kwargs) if draws else func(*args, **kwargs)
        first = result[0] if isinstance(result, list | tuple) and result else result
        if isinstance(first, Tensor) and first.dtype in _LOW:
            self.low = max(self.low, torch.finfo(first.dtype).eps)
        elif isinstance(first, Tensor) and first.dtype in (torch.float32, torch.complex64):
            self.epsilon = torch.finfo(torch.float32).eps
        if name.startswith("nll_loss") and (call := _loss_call(arguments_of(func, args, kwargs), result)) is not None:
            self.calls.append(call)
        return result


@cache
def _kind(func: Any) -> tuple[str, bool, tuple[str, ...]]:
    """Of an operator: its name, whether it draws, and the arguments that it writes to."""
    written = tuple(
        one.name for one in func._schema.arguments if one.alias_info is not None and one.alias_info.is_write
    )
    return func._schema.name.rpartition("::")[2], draws_by(func), written


def _loss_call(given: Mapping[str, Any], result: Any) -> Call | None:
    """What a call of `nll_loss_forward` or `nll_loss2d_forward` with these arguments tells; None for anything else."""
    if "grad_output" in given or given["reduction"] != _MEAN or not isinstance(result, tuple):
        return None
    weight, target, ignored = given["weight"], given["target"], given["ignore_index"]
    counted = target[target != ignored]
    weights, each = None, counted[:0]
    if isinstance(weight, Tensor) and weight.numel() <= MOST_WEIGHTS and bool((weight != weight.flatten()[0]).any()):
        weights, each = tuple(weight.detach().flatten().tolist()), weight[counted]
    uneven = counted.numel() < target.numel() or bool((each != each[:1]).any())
    return Call(int(ignored), weights, float(result[1]), uneven)
