"""What a dataset holds is told from what another of the same type and length holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, random_split

from cordee.feed.dataset import DatasetSource

COUNT = 200


class Held(Dataset[Any]):
    """Of so many samples, and whatever it is given."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, place: int) -> int:
        return place


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def split(seed: int) -> Any:
    return random_split(TensorDataset(numbers(0, 300)), [COUNT, 100], torch.Generator().manual_seed(seed))[0]


DIFFERENT: dict[str, Callable[[int], Any]] = {
    "tensors": lambda seed: TensorDataset(numbers(seed, COUNT, 3), torch.zeros(COUNT)),
    "split": split,
    "split twice": lambda seed: Subset(split(seed), range(COUNT)),
    "joined": lambda seed: ConcatDataset([TensorDataset(numbers(0, 100)), TensorDataset(numbers(seed, 100))]),
    "array": lambda seed: Held(x=numbers(seed, COUNT).numpy()),
    "bfloat16": lambda seed: Held(x=numbers(seed, COUNT).bfloat16()),
    "text in one array": lambda seed: Held(text=np.random.default_rng(seed).integers(0, 255, 5_000).astype(np.uint8)),
    "arrays by name": lambda seed: Held(columns={"x": numbers(seed, COUNT)}),
    "files": lambda seed: Held(files=[Path(f"/data/{(place * (seed + 1)) % 199}.png") for place in range(COUNT)]),
    "files and classes": lambda seed: Held(rows=[(f"/data/{place}.png", place % (2 + seed)) for place in range(COUNT)]),
    "samples": lambda seed: Held(rows=[(numbers(seed + place, 4), place) for place in range(COUNT)]),
    "by file": lambda seed: Held(label={f"{place}.png": place % (2 + seed) for place in range(COUNT)}),
    "own": lambda seed: Held(fingerprint=f"version {seed}"),
    "rows by name": lambda seed: Held(rows=[{"x": place, "y": place % (2 + seed)} for place in range(COUNT)]),
    "a list": lambda seed: [(numbers(seed + place, 4), place) for place in range(COUNT)],
}
SAME: dict[str, Callable[[int], Any]] = {
    "folder": lambda seed: Held(root=f"/data{seed}", files=[f"/data{seed}/{place}.png" for place in range(COUNT)]),
    "other things": lambda seed: Held(mean=numbers(seed, 3), cache={}, generator=np.random.default_rng(seed), n=seed),
    "own": lambda seed: Held(x=numbers(seed, COUNT), fingerprint="always"),
    "not plain": lambda seed: Held(x=numbers(seed, COUNT).to_sparse(), y=torch.empty(COUNT, device="meta")),
    "itself": lambda seed: looped(),
}


def looped() -> Held:
    made = Held(x=numbers(0, COUNT))
    made.inner = made  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize("kind", DIFFERENT)
def test_other_content_is_seen(kind: str) -> None:
    found = [DatasetSource(DIFFERENT[kind](seed)).fingerprint for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("kind", SAME)
def test_what_may_differ_between_machines_does_not_count(kind: str) -> None:
    assert DatasetSource(SAME[kind](0)).fingerprint == DatasetSource(SAME[kind](1)).fingerprint
