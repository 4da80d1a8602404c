"""What is seen of a pass while it runs: every operator that reaches torch's dispatcher, backward ones too.

Draws of torch are seen there, those of NumPy and Python where a function of `np.random` or `random` is called. Shuffles
are not replayed: a slice of a permutation is none. Losses that divide by something else than samples, such as
cross-entropy with ignored targets or class weights, end in torch's `nll_loss`, which says what it divided by. That
explains a refusal; it is no reason for one.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from cordee.diagnose.preflight.draws import Draw, Slice

_LOW = (torch.float16, torch.bfloat16)
_MEAN = 1  # as torch counts reductions
DEFAULT_IGNORED = -100
MOST_WEIGHTS = 100_000
MOST_TELLING = 16

_REPLAYED = frozenset(
    (
        *("rand", "randn", "rand_like", "randn_like", "randint", "randint_like", "normal", "normal_", "uniform_"),
        *("bernoulli", "bernoulli_", "exponential_", "cauchy_", "log_normal_", "geometric_", "random_", "poisson"),
        *("multinomial", "binomial", "_standard_gamma", "_sample_dirichlet", "native_dropout"),
    )
)
_SHUFFLES = frozenset(("permutation", "permuted", "shuffle", "sample", "choice", "choices"))
GLOBAL_GENERATORS: dict[Any, Any] = {np.random: np.random.mtrand._rand, random: random._inst}
"""The modules whose functions draw from one generator of the process, with that."""
_NO_DRAWS = frozenset(("seed", "get_state", "set_state", "getstate", "setstate", "get_bit_generator"))


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


@dataclass
class Tape:
    """What was seen of a pass."""

    draws: list[Draw] = field(default_factory=list)
    """In order."""
    drawn_from: set[int] = field(default_factory=set)
    """The generators of NumPy and Python, by id, whose calls were seen."""
    shuffled: bool = False
    unseen: bool = False
    """Something was drawn by a call that cannot be recorded."""
    fused: bool = False
    """Dropout within a fused attention kernel: the plain kernel shows its draws."""
    calls: list[Call] = field(default_factory=list)
    low: float = 0.0
    """The coarsest epsilon of formats below fp32 that were seen; 0 if there were none."""
    epsilon: float = torch.finfo(torch.float64).eps
    """That of fp32 if it was seen, else of fp64."""


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator of a pass; if there is a slice to replay, draws become what the whole drew."""

    supports_higher_order_operators = True
    """They run unwatched; without this, torch would refuse them in here."""

    def __init__(self, before_write: Callable[[Tensor], None], replay: Slice | None = None) -> None:
        """For one pass; `before_write` is called with what an operator is about to write to."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape = Tape()
        self._before_write, self._replay = before_write, replay

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: to skip it torch would import it, which takes a second, and nothing is compiled in a pass."""
        return False

    @contextlib.contextmanager
    def watching(self, seed: int) -> Iterator[None]:
        """In here the functions of `np.random` and `random` are replaced by ones that record what they draw.

        Neither offers a hook: code calls them by the module's name, so that is where they are watched.
        """
        with contextlib.ExitStack() as stack:

            def replace(module: Any, name: str, function: Callable[..., Any]) -> None:
                stack.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, function)

            def make(*args: Any, **kwargs: Any) -> Any:
                """What a new generator draws cannot be recorded; one without a seed would draw otherwise each time."""
                self.tape.unseen = True
                return default_rng(*args, **kwargs) if args or kwargs else default_rng(seed)

            default_rng = np.random.default_rng
            replace(np.random, "default_rng", make)
            for module, generator in GLOBAL_GENERATORS.items():
                for name, function in list(vars(module).items()):
                    if getattr(function, "__self__", None) is generator and name not in _NO_DRAWS:
                        replace(module, name, self._watched(module.__name__, name, function))
            stack.enter_context(self)
            yield

    def _watched(self, module: str, name: str, function: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self.tape.drawn_from.add(id(function.__self__))
            if name in _SHUFFLES:
                self.tape.shuffled = True
                return result
            limits = (*args[:2], *(kwargs.get(one) for one in ("low", "high", "start", "stop")))
            whole = name in ("randint", "random_integers", "randrange")
            return self._enter(f"{module}.{name}", result, tuple(map(repr, limits)) if whole else ())

        return call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs)
        name, draws, written = _kind(func)
        for value in (_arguments_of(func, args, kwargs).get(one) for one in written):
            for tensor in value if isinstance(value, list | tuple) else (value,):
                if isinstance(tensor, Tensor):
                    self._before_write(tensor)
        result = self._draw(name, func, args, kwargs) if draws else func(*args, **kwargs)
        first = result[0] if isinstance(result, list | tuple) and result else result
        if isinstance(first, Tensor) and first.dtype in _LOW:
            self.tape.low = max(self.tape.low, torch.finfo(first.dtype).eps)
        elif isinstance(first, Tensor) and first.dtype in (torch.float32, torch.complex64):
            self.tape.epsilon = torch.finfo(torch.float32).eps
        if name in ("nll_loss_forward", "nll_loss2d_forward"):
            given = _arguments_of(func, args, kwargs)
            if given["reduction"] == _MEAN:
                self.tape.calls.append(_loss_call(given, float(result[1])))
        return result

    def _draw(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator of torch that draws."""
        given = _arguments_of(func, args, kwargs)
        if name == "rrelu_with_noise" and given.get("training", False):
            return self._leaky(*args[:4])
        result = func(*args, **kwargs)
        if name == "randperm" or (name == "multinomial" and args[0].dim() == 1):
            self.tape.shuffled = True
            return result
        if name not in _REPLAYED:
            rate = given.get("dropout_p", given.get("dropout"))  # of a fused kernel
            if rate is None or rate > 0:
                self.tape.unseen = True
                self.tape.fused |= rate is not None
            return result
        drawn = result[1] if name == "native_dropout" else result
        # Between what whole numbers are drawn: the limits, or how many outcomes there are.
        limits = (args[0].shape[-1],) if name == "multinomial" else map(given.get, ("low", "high", "from", "to"))
        value = self._enter(name, drawn, tuple(limits))
        if value is not drawn:
            with torch.no_grad():
                drawn.copy_(value)
                if name == "native_dropout":
                    rate = float(args[1])
                    result[0].copy_(args[0] * drawn * (1.0 / (1.0 - rate) if rate < 1.0 else 0.0))
        return result

    def _leaky(self, x: Tensor, noise: Tensor, lower: float, upper: float) -> Tensor:
        """A randomised leaky ReLU that draws for all of its input: torch's own draws as often as that is negative."""
        drawn = self._enter("rrelu", torch.empty_like(x).uniform_(lower, upper))
        noise.copy_(torch.where(x <= 0, drawn, 1.0))
        return x * noise

    def _enter(self, kind: str, drawn: Any, bounds: tuple[Any, ...] = ()) -> Any:
        """What the call has to give; what it drew itself where nothing is replayed."""
        draw = Draw(kind, drawn.detach().clone() if isinstance(drawn, Tensor) else drawn, bounds)
        self.tape.draws.append(draw)
        return drawn if self._replay is None else self._replay.of(len(self.tape.draws) - 1, draw)


@cache
def _kind(func: Any) -> tuple[str, bool, tuple[str, ...]]:
    """Of an operator: its name, whether it draws (some lack the tag in some versions), and what it writes to."""
    name = func._schema.name.rpartition("::")[2]
    draws = torch.Tag.nondeterministic_seeded in func.tags or name in ("_sample_dirichlet", "binomial", "random_")
    written = [one.name for one in func._schema.arguments if one.alias_info is not None and one.alias_info.is_write]
    return name, draws, tuple(written)


def _arguments_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of an operator, by name; those left out have the default, if there is one."""
    arguments = func._schema.arguments
    defaults = {one.name: one.default_value for one in arguments[len(args) :] if one.has_default_value()}
    return {**defaults, **{one.name: value for one, value in zip(arguments, args, strict=False)}, **kwargs}


def _loss_call(given: Mapping[str, Any], total: float) -> Call:
    """What a call of `nll_loss_forward` or `nll_loss2d_forward` with these arguments tells."""
    weight, target, ignored = given["weight"], given["target"], given["ignore_index"]
    counted = target[target != ignored]
    weights, each = None, counted[:0]
    if isinstance(weight, Tensor) and weight.numel() <= MOST_WEIGHTS and bool((weight != weight.flatten()[0]).any()):
        weights, each = tuple(weight.detach().flatten().tolist()), weight[counted]
    uneven = counted.numel() < target.numel() or bool((each != each[:1]).any())
    return Call(int(ignored), weights, total, uneven)
