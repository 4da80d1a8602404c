"""Torch's DataLoader and torchdata's StatefulDataLoader over arrays that are mapped from disk."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loading_data import BATCH, SEED
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

AHEAD = 4
"""Batches that each worker reads ahead, where there are workers."""


class Rows(Dataset[Any]):
    """One sample at a time, as the loader's documentation has it."""

    def __init__(self, folder: Path, tensors: bool) -> None:
        """Map the arrays. A tensor's row is a view; of an array's, the copy is made by hand."""
        # Mapped copy-on-write: torch warns of tensors over memory that cannot be written.
        x, y = (np.load(folder / name, mmap_mode="c") for name in ("x.npy", "y.npy"))
        self.x, self.y = (torch.from_numpy(x), torch.from_numpy(y)) if tensors else (x, y)
        self.tensors = tensors

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.y)

    def __getitem__(self, at: int) -> Any:
        """One sample."""
        return (self.x[at], self.y[at]) if self.tensors else (torch.from_numpy(self.x[at]), int(self.y[at]))


class Batches(Rows):
    """A whole batch at a time, gathered by the user's own code."""

    def __getitem__(self, at: Any) -> Any:
        """The samples of these numbers."""
        if self.tensors:
            chosen = torch.as_tensor(at)
            return self.x[chosen], self.y[chosen]
        return torch.from_numpy(self.x[at]), torch.from_numpy(self.y[at])


class _Reading:
    def __init__(self, folder: Path, *, tensors: bool, workers: int, batches: bool, stateful: bool) -> None:
        kind: Any = DataLoader
        if stateful:
            from torchdata.stateful_dataloader import StatefulDataLoader

            kind = StatefulDataLoader
        self._stateful, self._done, self._epoch = stateful, 0, 0
        self._draw = torch.Generator()
        dataset = (Batches if batches else Rows)(folder, tensors)
        more: dict[str, Any] = {"num_workers": workers}
        if workers:
            more |= {"persistent_workers": True, "prefetch_factor": AHEAD}
        sampler = RandomSampler(dataset, generator=self._draw)
        if batches:  # "disable automatic batching": the sampler gives lists of numbers, the dataset whole batches
            more |= {"sampler": BatchSampler(sampler, BATCH, drop_last=False), "batch_size": None}
        else:
            more |= {"sampler": sampler, "batch_size": BATCH}
        self._loader = kind(dataset, **more)

    def epoch(self, number: int) -> Iterator[Any]:
        self._epoch, self._done = number, 0
        self._draw.manual_seed(SEED + number)
        for batch in self._loader:
            self._done += 1
            yield batch

    def state(self) -> Any:
        """A DataLoader has none: the epoch's number and how many of its batches were taken is what users write down."""
        return self._loader.state_dict() if self._stateful else {"epoch": self._epoch, "done": self._done}

    def resume(self, state: Any) -> Iterator[Any]:
        if self._stateful:
            self._draw.manual_seed(SEED)
            self._loader.load_state_dict(state)
            return iter(self._loader)
        return itertools.islice(self.epoch(state["epoch"]), state["done"], None)


class Mapped:
    """Two npy files."""

    def __init__(self, *, batches: bool = False, stateful: bool = False) -> None:
        """`batches`: the dataset gathers them; `stateful`: torchdata's loader."""
        self._batches, self._stateful = batches, stateful

    def write(self, folder: Path, x: np.ndarray, y: np.ndarray) -> None:
        """With numpy."""
        np.save(folder / "x.npy", x)
        np.save(folder / "y.npy", y)

    def open(self, folder: Path, *, tensors: bool = True, workers: int = 0) -> _Reading:
        """Map the files and make the loader."""
        return _Reading(folder, tensors=tensors, workers=workers, batches=self._batches, stateful=self._stateful)


SAMPLES_OF = Mapped()
BATCHES_OF = Mapped(batches=True)
STATEFUL = Mapped(stateful=True)
