"""How code of the user's reads samples: one thread at a time, and with random draws that belong to the samples.

A dataset may hold what is not for two threads at once (a file handle, h5py, sqlite), and two datasets may hold the same
one, as `random_split` makes them: while a loader's thread reads ahead for the training, an evaluation reads too.

A dataset may draw random numbers, as torchvision's transforms do, from torch's one generator, from which the model
draws at the same time in another thread: who comes first is chance, and the run is another one every time. So a sample
draws from a generator that begins anew for it, by seed, epoch and sample: the same numbers on any worker, at any time.
Python's `random` and NumPy's `np.random` have one generator each for all threads, and nothing can stand in between: for
datasets that draw from them, they begin anew for each sample.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from cordee.core.errors import WaitedTooLong
from cordee.feed.permute import random_bits

_turn = threading.RLock()
_here = threading.local()  # .key: the seed and the epoch of what this thread reads

_FUNCTIONS = "rand randn randint randperm normal bernoulli multinomial poisson rand_like randn_like randint_like"
_METHODS = "uniform_ normal_ random_ bernoulli bernoulli_ multinomial exponential_ geometric_ cauchy_ log_normal_"
_DRAWS = frozenset(
    [*(getattr(torch, name) for name in _FUNCTIONS.split()), *(getattr(Tensor, name) for name in _METHODS.split())]
)


@contextmanager
def reading(seed: int = 0, epoch: int = 0, *, deadline_s: float = 300.0) -> Iterator[None]:
    """Wait until no other thread reads samples, and keep it so; random draws in here are those of this seed and epoch.

    One turn for all datasets, because what two of them share cannot be seen.
    """
    if not _turn.acquire(timeout=deadline_s):
        raise WaitedTooLong(
            f"waited {deadline_s:g} s until another thread had read its samples: reading hangs or is slow; look at the "
            "storage, or allow more time"
        )
    outer = getattr(_here, "key", None)
    if outer is None:
        _here.key = (seed, epoch)
    try:
        yield
    finally:
        _here.key = outer
        _turn.release()


def begin_others(bits: int) -> None:
    """Let Python's and NumPy's generators begin anew, for all threads."""
    random.seed(bits)
    np.random.seed(bits & 0xFFFF_FFFF)


def places_of_others() -> tuple[Any, ...]:
    """Where they stand: it changes with every draw, of any thread."""
    _, words, next_gauss = random.getstate()
    of_numpy: Any = np.random.get_state(legacy=False)
    return words[-1], next_gauss, of_numpy["state"].get("pos", of_numpy), of_numpy.get("gauss")


class SampleDraws(TorchFunctionMode):
    """In here, torch draws on the CPU from a generator that belongs to the sample at hand; only in this thread."""

    def __init__(self, *, others: bool = False, key: tuple[int, int] | None = None) -> None:
        """Draws of the seed and epoch that are read, or of `key`; `others`: of Python and NumPy too, in all threads."""
        super().__init__()
        self._others = others
        self._key: tuple[int, int] = key or getattr(_here, "key", None) or (0, 0)
        self._sample = 0
        self._generator: torch.Generator | None = None
        self.used = False
        """Whether something was drawn."""

    def turn_to(self, sample: int) -> None:
        """What is drawn from now on belongs to this sample."""
        self._sample, self._generator = sample, None
        if self._others:
            begin_others(self._bits())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Called by torch for every function of its own."""
        kwargs = kwargs or {}
        if func in _DRAWS and kwargs.get("generator") is None and _on_cpu(args, kwargs):
            kwargs = {**kwargs, "generator": self._own()}
        return func(*args, **kwargs)

    def _own(self) -> torch.Generator:
        if self._generator is None:
            self._generator = torch.Generator()
            self._generator.manual_seed(self._bits() >> 1)
            self.used = True
        return self._generator

    def _bits(self) -> int:
        return random_bits(1, "dataset", *self._key, self._sample)[0]


def _on_cpu(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a function with these arguments draws on the CPU: a generator of ours would not fit elsewhere."""
    device = kwargs.get("device")
    if device is None:
        tensors = (given.device for given in (*args, *kwargs.values()) if isinstance(given, Tensor))
        device = next(tensors, None) or torch.get_default_device()
    return torch.device(device).type == "cpu"
