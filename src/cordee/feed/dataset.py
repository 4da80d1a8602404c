"""Any PyTorch map-style dataset as a source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, IterableDataset, TensorDataset, default_collate
from torch.utils.data import Subset as TorchSubset

from cordee.core.errors import DataError
from cordee.feed.content import content_of
from cordee.feed.permute import Ids
from cordee.feed.reading import SampleDraws, places_of_others, reading
from cordee.feed.source import Fields, Traits, check_ids, digest_of

Collate = Callable[[list[Any]], Fields]
"""Makes a batch of a list of samples."""


_LOOKED = 16
"""So many, from first to last, are read once to see whether they draw from Python's or NumPy's generator."""


class DatasetSource:
    """A dataset with `__len__` and `__getitem__` (or `__getitems__`), whose samples are collated into batches."""

    def __init__(self, dataset: Any, collate: Collate | None = None) -> None:
        """Collate with PyTorch's default, or with the user's own function."""
        kind = type(dataset).__name__
        if isinstance(dataset, IterableDataset) or not (
            hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        ):
            raise DataError(
                f"{kind} can only be iterated: samples are asked for by number here, so that any worker can take any "
                "of them; give a map-style dataset, with __len__ and __getitem__"
            )
        if len(dataset) < 1:
            raise DataError(f"the dataset {kind} is empty: at least 1 sample is needed")
        self.dataset = dataset
        self.fingerprint = digest_of([f"{type(dataset).__qualname__} {len(dataset)}".encode(), _told(dataset)])
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
        """Samples that the user's code makes; those of a `TensorDataset` lie in memory."""
        in_memory = hasattr(self.dataset, "tensors")
        return Traits(draws=self._others, columns=self._columns if in_memory else None)

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
                self._samples(
                    np.linspace(0, len(self) - 1, min(_LOOKED, len(self))).astype(int).tolist(), SampleDraws()
                )
            self._others = places_of_others() != before
            return self._read(ids) if self._others else fields

    def _read(self, ids: Ids) -> Fields:
        draws = SampleDraws(others=bool(self._others))
        samples = self._samples(ids.tolist(), draws)
        if self._collate is default_collate:
            return self._stacked(samples, ids)
        draws.turn_to(-1 - int(ids[0]))  # no sample's own
        with draws:
            return self._collate(samples)

    def _stacked(self, samples: list[Any], ids: Ids) -> Fields:
        try:
            batch: Fields = default_collate(samples)
            return batch
        except (RuntimeError, TypeError, KeyError, AttributeError) as error:
            forms = {
                _form(sample): place for sample, place in zip(reversed(samples), reversed(ids.tolist()), strict=True)
            }
            seen = ", ".join(f"sample {place} is {form}" for form, place in list(forms.items())[:-3:-1])
            raise DataError(
                f"samples of {type(self.dataset).__name__} cannot be stacked to a batch: {seen}. Give a function that "
                "makes a batch of a list of samples, by padding for instance: cordee.data.dataset(..., collate=...)"
            ) from error

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

    def _columns(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """The tensors of a `TensorDataset`, by place."""
        for place, tensor in enumerate(self.dataset.tensors):
            if isinstance(tensor, Tensor) and len(tensor) == len(self):
                yield str(place), tensor.detach().cpu().numpy()

    def _sample(self, place: int, draws: SampleDraws) -> Any:
        draws.turn_to(place)
        try:
            return self.dataset[place] if self._get_many is None else self._get_many([place])[0]
        except Exception as error:
            # As `add_note` does, which Python has since 3.11.
            vars(error).setdefault("__notes__", []).append(f"in sample {place} of {type(self.dataset).__name__}")
            raise


def _is_plain(dataset: Any) -> bool:
    """Whether no code of the user's makes its samples, so that nothing draws."""
    if type(dataset) in (TorchSubset, ConcatDataset):
        return all(map(_is_plain, dataset.datasets if type(dataset) is ConcatDataset else [dataset.dataset]))
    return type(dataset) is TensorDataset


def _told(dataset: Any) -> bytes:
    own = getattr(dataset, "fingerprint", None)
    return (content_of(dataset) if own is None else str(own)).encode()


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
