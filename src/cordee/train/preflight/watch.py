"""What is seen of a pass while it runs: every operator that reaches torch's dispatcher, backward ones too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from cordee.train.preflight.draws import Draws, draws_by
from cordee.train.preflight.holdings import CopyOnWrite
from cordee.train.preflight.normaliser import Call, loss_call

_LOW = (torch.float16, torch.bfloat16)


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator of a pass: writes, draws, losses with a normaliser of their own, and coarse formats."""

    _kinds: dict[Any, tuple[str, bool, tuple[int, ...]]] = {}  # noqa: RUF012

    def __init__(self, draws: Draws, writes: CopyOnWrite) -> None:
        """For one pass."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._draws, self._writes = draws, writes
        self.calls: list[Call] = []
        self.low = 0.0
        """The coarsest epsilon of formats below fp32 that were seen."""
        self.epsilon = torch.finfo(torch.float64).eps
        """That of fp32 if it was seen, else of fp64."""

    supports_higher_order_operators = True
    """They run unwatched; without this, torch would refuse them in here."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: to skip it torch would import it, which takes a second, and nothing is compiled in a pass."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs)
        name, draws, written = self._kind(func)
        for place in written:
            given = args[place] if place < len(args) else kwargs.get(func._schema.arguments[place].name)
            for one in given if isinstance(given, list | tuple) else (given,):
                if isinstance(one, Tensor):
                    self._writes.before_write(one)
        result = self._draws.of_operator(name, func, args, kwargs) if draws else func(*args, **kwargs)
        first = result[0] if isinstance(result, list | tuple) and result else result
        if isinstance(first, Tensor) and first.dtype in _LOW:
            self.low = max(self.low, torch.finfo(first.dtype).eps)
        elif isinstance(first, Tensor) and first.dtype in (torch.float32, torch.complex64):
            self.epsilon = torch.finfo(torch.float32).eps
        if name.startswith("nll_loss") and (call := loss_call(func, args, kwargs, result)) is not None:
            self.calls.append(call)
        return result

    def _kind(self, func: Any) -> tuple[str, bool, tuple[int, ...]]:
        if func not in self._kinds:
            arguments = enumerate(func._schema.arguments)
            written = tuple(at for at, one in arguments if one.alias_info is not None and one.alias_info.is_write)
            self._kinds[func] = (func._schema.name.rpartition("::")[2], draws_by(func), written)
        return self._kinds[func]
