"""Any PyTorch map-style dataset as a source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, TensorDataset, default_collate
from torch.utils.data import Subset as TorchSubset

from cordee.core.errors import DataError
from cordee.feed.permute import Ids
from cordee.feed.reading import SampleDraws, places_of_others, reading
from cordee.feed.source import Fields, Traits, check_ids, digest_of, spread

Collate = Callable[[list[Any]], Fields]
"""Makes a batch of a list of samples."""

_DEPTH = 4  # of what a dataset holds
_LOOKED = 16
"""So many, from first to last, are read once to see whether they draw from Python's or NumPy's generator."""


def only_iterated(what: str, given: str) -> DataError:
    """The error for what gives samples in its own order alone, with the lines that make data of it."""
    return DataError(
        f"{what} can only be iterated: samples are asked for by number here, so that any worker can take any of them. "
        "Its rows can be written to a store once:\n"
        f"    data=cordee.data.rows({given})\n"
        "or read as an endless stream, whose order is that in which they come:\n"
        f"    data=cordee.data.stream({given}), steps_per_epoch=1000, shuffle='none'"
    )


class DatasetSource:
    """A dataset with `__len__` and `__getitem__` (or `__getitems__`), whose samples are collated into batches."""

    def __init__(self, dataset: Any, collate: Collate | None = None) -> None:
        """Collate with PyTorch's default, or with the user's own function."""
        kind = type(dataset).__name__
        by_number = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if isinstance(dataset, IterableDataset) or not by_number:
            raise only_iterated(kind, "function" if isinstance(dataset, Iterator) else "dataset")
        if len(dataset) < 1:
            raise DataError(f"the dataset {kind} is empty: at least 1 sample is needed")
        self.dataset = dataset
        own = getattr(dataset, "fingerprint", None)
        content = content_of(dataset) if own is None else str(own)
        self.fingerprint = digest_of([f"{type(dataset).__qualname__} {len(dataset)}".encode(), content.encode()])
        """Made of its type, its length, and its own `fingerprint` if it has one, else of what it holds now."""
        self._collate: Collate = collate or default_collate
        self._get_many: Callable[[list[int]], list[Any]] | None = _many(dataset)
        self._plain = _is_plain(dataset)
        self._draws = False
        """Whether samples were seen to draw random numbers of torch's."""
        self._others: bool | None = None
        """Whether they draw Python's or NumPy's; not known before some were read."""

    @property
    def traits(self) -> Traits:
        """Samples that the user's code makes."""
        return Traits(draws=self._others)

    def __len__(self) -> int:
        """The length of the dataset."""
        return len(self.dataset)

    def buffers(self, count: int, *, pin: bool = False) -> None:
        """None: collating makes its own tensors."""

    def gather(self, ids: Ids, out: Fields | None = None) -> Fields:
        """The samples `ids`, collated; at least one."""
        if not len(ids):
            raise ValueError("a dataset cannot make a batch of no samples: ask for at least 1")
        check_ids(ids, len(self))
        with reading():
            if self._others is not None:
                return self._read(ids)
            # Once, at the beginning: later on it may be the training that draws, in another thread.
            before = places_of_others()
            fields = self._read(ids)
            if places_of_others() == before:
                self._samples(spread(len(self), _LOOKED), SampleDraws())
            self._others = places_of_others() != before
            return self._read(ids) if self._others else fields

    def _read(self, ids: Ids) -> Fields:
        draws = SampleDraws(others=bool(self._others))
        samples = self._samples(ids.tolist(), draws)
        if self._collate is default_collate:
            return stacked(samples, ids, type(self.dataset).__name__)
        draws.turn_to(-1 - int(ids[0]))  # no sample's own
        with draws:
            return self._collate(samples)

    def _samples(self, ids: list[int], draws: SampleDraws) -> list[Any]:
        if self._get_many is not None and not self._draws and not self._others:
            with draws:
                samples = self._get_many(ids)
            if not draws.used:
                return samples
            self._draws = True  # what a sample draws must not depend on those beside it: once more, each by itself
        # To follow what a sample draws makes every call of torch in it dearer, by a microsecond or two; but one in a
        # thousand that draws must be seen too.
        with nullcontext() if self._plain else draws:
            return [self._sample(place, draws) for place in ids]

    def _sample(self, place: int, draws: SampleDraws) -> Any:
        draws.turn_to(place)
        try:
            return self.dataset[place] if self._get_many is None else self._get_many([place])[0]
        except Exception as error:
            # As `add_note` does, which Python has since 3.11.
            vars(error).setdefault("__notes__", []).append(f"in sample {place} of {type(self.dataset).__name__}")
            raise


def stacked(samples: list[Any], ids: Ids, kind: str, how: str = "dataset") -> Fields:
    """A batch of samples as PyTorch makes it; the error names two that differ."""
    try:
        batch: Fields = default_collate(samples)
        return batch
    except (RuntimeError, TypeError, KeyError, AttributeError) as error:
        forms = {_form(sample): place for sample, place in zip(samples[::-1], ids[::-1].tolist(), strict=True)}
        seen = ", ".join(f"sample {place} is {form}" for form, place in list(forms.items())[:-3:-1])
        raise DataError(
            f"samples of {kind} cannot be stacked to a batch: {seen}. Give a function that makes a batch of a list of "
            f"samples, by padding for instance: cordee.data.{how}(..., collate=...)"
        ) from error


def _is_plain(dataset: Any) -> bool:
    """Whether no code of the user's makes its samples, so that nothing draws."""
    if type(dataset) in (TorchSubset, ConcatDataset):
        return all(map(_is_plain, dataset.datasets if type(dataset) is ConcatDataset else [dataset.dataset]))
    return type(dataset) is TensorDataset


def _form(sample: Any) -> str:
    """What a sample looks like, for people."""
    if isinstance(sample, dict):
        return "{" + ", ".join(f"{key}: {_form(value)}" for key, value in sample.items()) + "}"
    if isinstance(sample, tuple | list):
        inner = list(map(_form, sample))
        return f"{len(inner)} x {inner[0]}" if len(inner) > 3 and len(set(inner)) == 1 else f"({', '.join(inner)})"
    shape = getattr(sample, "shape", None)
    return type(sample).__name__ if shape is None else f"shape {tuple(shape)}"


def _many(dataset: Any) -> Callable[[list[int]], list[Any]] | None:
    """How a dataset gives several samples at once; None if it does not. A `Subset` of PyTorch's only seems to."""
    if getattr(type(dataset), "__getitems__", None) is TorchSubset.__getitems__ and _many(dataset.dataset) is None:
        return None
    own: Callable[[list[int]], list[Any]] | None = getattr(dataset, "__getitems__", None)
    return own


def content_of(dataset: Any) -> str:
    """A digest of arrays and lists that it holds, of those as long as itself or longer: some places, first to last.

    Shorter ones may be anything, but those inside them count, and so do datasets that it is made of. No sample is
    read: it may be drawn at random.
    """
    least = 1 if isinstance(dataset, list | tuple) else max(1, len(dataset))
    return digest_of(part.encode() for part in _parts(dataset, least, _DEPTH))


def has_content(dataset: Any) -> bool:
    """Whether it holds anything that `content_of` goes by."""
    least = 1 if isinstance(dataset, list | tuple) else max(1, len(dataset))
    return next(_parts(dataset, least, _DEPTH), None) is not None


def _parts(value: Any, least: int, depth: int) -> Iterator[str]:
    """What counts of a value: of a list that is long enough all that it holds, whatever its length (`least` = 0)."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, torch.Tensor | np.ndarray):
        if np.prod(value.shape) >= least:
            yield _of_array(value)
    elif isinstance(value, Mapping):
        yield from _parts(list(value.items() if len(value) >= least else value.values()), least, depth)
    elif isinstance(value, list | tuple | range):
        if len(value) >= least:
            yield str(len(value))
            least = 0
        for place in spread(len(value)) if depth else ():
            yield from _parts(value[place], least, depth - 1)
    elif isinstance(value, str | PurePath):
        if not least:  # only what follows the last slash: the same files may lie in another folder
            yield str(value).rpartition("/")[2]
    elif isinstance(value, bool | int | float | bytes | None):
        if not least:
            yield repr(value)
    elif depth == _DEPTH or (depth and isinstance(value, Dataset) and hasattr(value, "__len__")):
        for name, held in sorted(getattr(value, "__dict__", {}).items()):
            for part in _parts(held, max(1, len(value)), depth - 1):
                yield f"{name} {part}"


def _of_array(value: Any) -> str:
    """Its shape, its type, and numbers at some places; of what is not plainly stored, shape and type."""
    words = f"{tuple(value.shape)} {value.dtype}"
    try:
        flat = value.detach().reshape(-1) if isinstance(value, torch.Tensor) else value.reshape(-1)
        return f"{words} {flat[spread(len(flat))].tolist()}"
    except (RuntimeError, TypeError, NotImplementedError):
        return words
