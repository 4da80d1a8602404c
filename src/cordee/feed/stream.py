"""Endless streams: samples that come one after the other, read without a store.

The sample with number n of the stream has the id n, so the global batch of step s is its samples from `s * batch` on,
whichever worker computes it. Each worker reads the whole stream and keeps its share: the stream must be the same each
time that it is begun. The last global batches are kept, so that a step can be done again when a worker was lost.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader, default_collate

from cordee.core.errors import DataError
from cordee.feed.data import Data, Held, held_out
from cordee.feed.dataset import Collate, content_of, stacked
from cordee.feed.permute import Ids
from cordee.feed.reading import SampleDraws, places_of_others, reading
from cordee.feed.source import Fields, Traits, digest_of

ENDLESS = 2**53
"""As many samples a stream has for those who ask; a number that every format can hold."""
LOOKED = 16
"""So many of the first samples tell two streams apart."""
KEPT = 128
"""Samples that are kept before it is known how large a global batch is."""
_WORDS_AFTER_S, _WORDS_EVERY_S = 2.0, 10.0


class StreamSource:
    """The samples of an endless stream: what `factory()` gives, in that order."""

    def __init__(self, factory: Callable[..., Iterable[Any]], collate: Collate | None = None) -> None:
        """`factory` begins the stream anew; if it takes `start`, it begins with the sample of that number."""
        self._factory, self._collate = factory, collate
        self.name = str(getattr(factory, "__qualname__", None) or type(factory).__name__)
        self._takes_start = _takes_start(factory)
        self._iterator: Iterator[Any] | None = None
        self._next = 0
        """The number of the sample that comes next."""
        self._window: deque[Any] = deque()
        """The samples before it, as many as are kept."""
        self._keep = KEPT
        self._others: bool | None = None
        """Whether samples draw from Python's or NumPy's generator; None: not known yet."""
        self._fingerprint = ""

    def __reduce__(self) -> Any:
        """A worker that is sent it begins the stream for itself."""
        return StreamSource, (self._factory, self._collate)

    def __len__(self) -> int:
        """More than are ever read."""
        return ENDLESS

    @property
    def traits(self) -> Traits:
        """Samples that the user's code makes, one after the other."""
        return Traits(draws=self._others, stream=self)

    @property
    def fingerprint(self) -> str:
        """Made of the first samples: workers whose streams differ are told so before the first step."""
        if not self._fingerprint:
            with reading():
                self._look()
        return self._fingerprint

    def buffers(self, count: int, *, pin: bool = False) -> None:
        """None: collating makes its own tensors."""

    def gather(self, ids: Ids, out: Fields | None = None) -> Fields:
        """The samples `ids`, collated; at least one."""
        low, high = int(ids.min()), int(ids.max())
        with reading():
            self._look()
            self._read_to(low, high)
            first = self._next - len(self._window)
            samples = [self._window[number - first] for number in ids.tolist()]
            if self._collate is None:
                return stacked(samples, ids, self.name, "stream")
            draws = self._draws()
            draws.turn_to(-1 - int(ids[0]))  # no sample's own
            with draws:
                return self._collate(samples)

    def begin(self, at: int, keep: int) -> None:
        """Training begins, or goes on, with the sample `at`: read up to it. From now on `keep` samples are kept."""
        with reading():
            self._keep = max(keep, LOOKED)
            self._look()
            if at > self._next:
                self._read_to(at, at - 1)

    # ------------------------------------------------------------- reading

    def _look(self) -> None:
        """Read the first samples, once: what they are, and whether they draw."""
        if self._fingerprint:
            return
        for others in (False, True):
            self._others = others
            self._open(0)
            before = places_of_others()
            self._read_to(0, LOOKED - 1, ends=True)
            if others or places_of_others() == before:
                break
        if not self._window:
            raise DataError(f"the stream {self.name} gave no sample: {self.name}() must begin it anew each time")
        self._fingerprint = digest_of([f"stream {self.name}".encode(), content_of(list(self._window)).encode()])

    def _read_to(self, low: int, high: int, *, ends: bool = False) -> None:
        """Read until the samples `low` to `high` are in the window, which holds those before them too."""
        first = self._next - len(self._window)
        far = self._takes_start and low > self._next + self._keep
        if self._iterator is None or low < first or far:
            self._open(max(0, low - self._keep) if self._takes_start else 0)
        began = told = time.monotonic()
        start, draws = self._next, self._draws()
        with draws:
            while self._next <= high:
                draws.turn_to(self._next)
                try:
                    sample = next(self._iterator)  # type: ignore[arg-type]
                except StopIteration:
                    if ends:
                        return
                    raise self._ended(high) from None
                except Exception as error:
                    vars(error).setdefault("__notes__", []).append(f"in sample {self._next} of the stream {self.name}")
                    raise
                self._window.append(sample)
                self._next += 1
                if len(self._window) > self._keep and self._next - len(self._window) < low:
                    self._window.popleft()
                    if (now := time.monotonic()) - told > (_WORDS_EVERY_S if told > began else _WORDS_AFTER_S):
                        told = now
                        self._tell(start, low, now - began)

    def _open(self, start: int) -> None:
        """Begin anew, with the sample of this number."""
        self._window.clear()
        made = self._factory(start=start) if self._takes_start else self._factory()
        if not isinstance(made, Iterable):
            raise DataError(
                f"the stream's function {self.name} gave a {type(made).__name__}; samples one after the other were "
                "expected: a generator function (with yield), or one that gives an iterator"
            )
        self._iterator, self._next = iter(made), start

    def _draws(self) -> SampleDraws:
        """Draws of a sample: by its number alone."""
        return SampleDraws(others=bool(self._others), key=(0, 0))

    def _ended(self, high: int) -> DataError:
        return DataError(
            f"the stream {self.name} ended after {self._next:,} samples, but sample {high + 1:,} is needed: an endless "
            "stream was expected. Make it begin again where it ends, let the run end before (epochs, steps_per_epoch), "
            f"or give its rows an order: data=cordee.data.rows({self.name})"
        )

    def _tell(self, start: int, wanted: int, took_s: float) -> None:
        """A line for people, while many samples are left out."""
        done, rate = self._next - start, (self._next - start) / took_s
        hint = "" if self._takes_start else f"; {self.name}(start=...) would begin there"
        sys.stderr.write(
            f"cordee: the stream {self.name} is read up to sample {wanted:,}, where the run goes on: {done:,} of "
            f"{wanted - start:,} samples, {rate:,.0f} per second{hint}\n"
        )


def stream(
    factory: Callable[..., Iterable[Any]],
    *,
    collate: Collate | None = None,
    validation: Held = None,
    test: Held = None,
) -> Data:
    """An endless stream for training, read as it comes; validation and test are sets of their own, if any.

    `factory()` begins the stream, the same each time, on every worker: a generator function, or a dataset that can be
    iterated. `factory(start=n)`, if it takes that, begins with its sample n, which makes a late resume quick. The job
    needs `steps_per_epoch=...` and `shuffle="none"`.
    """
    if isinstance(factory, DataLoader):
        raise DataError("a DataLoader makes batches of its own, which is the job's affair here: give loader.dataset")
    if isinstance(factory, Iterator):
        raise DataError(
            f"a {type(factory).__name__} can be read once, but each worker reads the stream, and reads it again when "
            "the run is resumed: give the function that makes it, stream(function) instead of stream(function())"
        )
    if isinstance(factory, Iterable):
        factory = again(factory)
    if not callable(factory):
        raise DataError(f"stream({factory!r}): a function that begins the stream was expected")
    return Data(StreamSource(factory, None if collate is default_collate else collate), **held_out(validation, test))


def again(dataset: Iterable[Any]) -> Callable[[], Iterator[Any]]:
    """A function that begins to iterate over a dataset."""
    return _Again(dataset)


class _Again:
    """Begins to iterate over a dataset, each time that it is called."""

    def __init__(self, dataset: Iterable[Any]) -> None:
        self.dataset = dataset
        self.__qualname__ = type(dataset).__name__

    def __call__(self) -> Iterator[Any]:
        return iter(self.dataset)


def _takes_start(factory: Callable[..., Any]) -> bool:
    try:
        return "start" in inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return False
