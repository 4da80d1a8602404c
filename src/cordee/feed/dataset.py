"""Any PyTorch map-style dataset as a source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import IterableDataset, default_collate

from cordee.core.errors import DataError
from cordee.feed.permute import Ids
from cordee.feed.source import Fields, check_ids, digest_of

Collate = Callable[[list[Any]], Fields]
"""Makes a batch of a list of samples."""


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
        self._collate: Collate = collate or default_collate
        self._get_many: Callable[[list[int]], list[Any]] = getattr(dataset, "__getitems__", self._one_by_one)

    def __len__(self) -> int:
        """The length of the dataset."""
        return len(self.dataset)

    @property
    def fingerprint(self) -> str:
        """The dataset's own `fingerprint`, else its type and length: samples may be augmented at random."""
        kind = type(self.dataset)
        own = getattr(self.dataset, "fingerprint", "")
        return digest_of([f"{kind.__qualname__} {len(self)} {own}".encode()])

    def buffers(self, count: int, *, pin: bool = False) -> None:
        """None: collating makes its own tensors."""

    def gather(self, ids: Ids, out: Fields | None = None) -> Fields:
        """The samples `ids`, collated; at least one."""
        if not len(ids):
            raise ValueError("a dataset cannot make a batch of no samples: ask for at least 1")
        check_ids(ids, len(self))
        return self._collate(self._get_many(ids.tolist()))

    def _one_by_one(self, ids: list[int]) -> list[Any]:
        return [self.dataset[place] for place in ids]
