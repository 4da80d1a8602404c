"""Random draws of a pass: recorded for the whole batch, and given to its parts again, each its own slice.

torch's draws are seen where they reach its operators, those of NumPy and Python where a function of `np.random` or
`random` is called. Shuffles are not replayed: a slice of a permutation is none.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LAYOUTS = ("samples first", "samples last", "one call per sample")
"""How the samples of a batch may lie in what is drawn for them, in the order in which that is tried."""

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


class ReplayFailed(Exception):
    """A part of the batch draws something that has no counterpart in what the whole has drawn."""


@dataclass(frozen=True)
class Draw:
    """One call that drew: of what, and what came out of it."""

    kind: str
    value: Any
    bounds: tuple[Any, ...] = ()
    """Of whole numbers: between what they were drawn."""

    @property
    def form(self) -> tuple[Any, ...]:
        """The kind and the shape: two passes that draw alike have the same forms in the same order."""
        return (self.kind, *(self.value.shape if isinstance(self.value, Tensor) else np.shape(self.value)))


@dataclass
class Tape:
    """What a pass drew, in order."""

    draws: list[Draw] = field(default_factory=list)
    shuffled: bool = False
    unseen: bool = False
    """Something was drawn by a call that cannot be recorded."""
    fused: bool = False
    """Dropout within a fused attention kernel: the plain kernel shows its draws."""


@dataclass(frozen=True)
class Slice:
    """Which samples of the whole a part holds, and how they lie in what was drawn for the whole."""

    whole: Tape
    count: int
    start: int
    stop: int
    layout: str
    calls: int = 0
    """With one call per sample: how many calls the part makes."""

    def of(self, place: int, kind: str, like: Any, bounds: tuple[Any, ...]) -> Any:
        """What the call at `place` of the part has to give, which gave `like` by itself.

        Never a number beyond its bounds: as an index it would end all use of a GPU.
        """
        draws = self.whole.draws
        if self.layout == LAYOUTS[2]:
            place = self._shifted(place)
        if not 0 <= place < len(draws) or (draws[place].kind, draws[place].bounds) != (kind, bounds):
            raise ReplayFailed
        value = draws[place].value
        given, wanted = draws[place].form[1:], Draw(kind, like).form[1:]
        if given == wanted:
            return value
        changed = [axis for axis, pair in enumerate(zip(given, wanted, strict=False)) if pair[0] != pair[1]]
        if len(given) != len(wanted) or len(changed) != 1:
            raise ReplayFailed
        chosen = self._chosen(given[changed[0]], wanted[changed[0]])
        if isinstance(value, Tensor):
            return value.index_select(changed[0], torch.from_numpy(chosen).to(value.device))
        return np.take(value, chosen, changed[0])

    def _chosen(self, given: int, wanted: int) -> NDArray[np.int64]:
        """Which of the `given` numbers along a dimension are those of our samples."""
        index = np.arange(given)
        if self.layout == LAYOUTS[1]:
            each = given // self.count  # numbers per sample
            if given != each * self.count or wanted != each * (self.stop - self.start):
                raise ReplayFailed
            return index.reshape(each, self.count)[:, self.start : self.stop].ravel()
        if wanted > given:
            raise ReplayFailed
        # A part is the beginning or the end of the whole; samples may draw more or less often than others.
        return index[:wanted] if not self.start else index[given - wanted :]

    def _shifted(self, place: int) -> int:
        """Behind what is drawn once for all, every sample has as many calls as any other."""
        more, others = len(self.whole.draws) - self.calls, self.count - (self.stop - self.start)
        each = more // others if others else 0
        once = self.calls - each * (self.stop - self.start)
        return place if place < once else place + self.start * each


class Draws:
    """Records what a pass draws, and replaces it by what the whole drew if there is a slice to replay."""

    def __init__(self, replay: Slice | None = None) -> None:
        """For one pass."""
        self.tape = Tape()
        self._replay = replay

    def of_operator(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator of torch that draws."""
        given = arguments_of(func, args, kwargs)
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
        place = len(self.tape.draws)
        self.tape.draws.append(Draw(kind, drawn.detach().clone() if isinstance(drawn, Tensor) else drawn, bounds))
        return drawn if self._replay is None else self._replay.of(place, kind, drawn, bounds)

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
                        replace(module, name, self._watched(f"{module.__name__}.{name}", function))
            before = _states()
            yield
            recorded = {draw.kind.rpartition(".")[0] for draw in self.tape.draws}
            moved = [name for name, state in _states().items() if state != before[name]]
            self.tape.unseen |= any(name not in recorded for name in moved) and not self.tape.shuffled

    def _watched(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        name = kind.rpartition(".")[2]

        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if name in _SHUFFLES:
                self.tape.shuffled = True
                return result
            limits = (*args[:2], *(kwargs.get(one) for one in ("low", "high", "start", "stop")))
            whole = name in ("randint", "random_integers", "randrange")
            return self._enter(kind, result, tuple(map(repr, limits)) if whole else ())

        return call


def draws_by(func: Any) -> bool:
    """Whether an operator of torch draws; some that do lack the tag in some versions."""
    name = func._schema.name.rpartition("::")[2]
    return torch.Tag.nondeterministic_seeded in func.tags or name in ("_sample_dirichlet", "binomial", "random_")


def arguments_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of an operator, by name; those left out have the default, if there is one."""
    arguments = func._schema.arguments
    defaults = {one.name: one.default_value for one in arguments[len(args) :] if one.has_default_value()}
    return {**defaults, **{one.name: value for one, value in zip(arguments, args, strict=False)}, **kwargs}


def _states() -> dict[str, Any]:
    """Where the generators of NumPy and Python stand, by module."""
    of_numpy: Any = np.random.get_state(legacy=True)
    return {"numpy.random": (of_numpy[1].tobytes(), *of_numpy[2:]), "random": random.getstate()}
