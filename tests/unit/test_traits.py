"""What sources say of themselves, and what readers make of it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from cordee.feed.arrays import ArraySource
from cordee.feed.dataset import DatasetSource
from cordee.feed.source import Source, Subset, Traits
from cordee.feed.text import TextSource

X, Y = np.arange(20, dtype=np.float32).reshape(10, 2), np.arange(10)


def test_arrays_lie_in_memory_and_run_no_code_of_the_user() -> None:
    source = ArraySource({"x": X, "y": Y})
    traits = source.traits
    assert isinstance(source, Source)
    assert (traits.runs_user_code, traits.draws, traits.rows) == (False, False, None)
    assert traits.table is source
    assert [name for name, _ in source.columns()] == ["x", "y"]


def test_a_subset_of_a_subset_names_rows_of_the_whole() -> None:
    whole = ArraySource({"x": X, "y": Y})
    traits = Subset(Subset(whole, np.array([1, 3, 5, 7])), np.array([3, 0])).traits
    assert traits.table is whole
    assert traits.rows is not None and traits.rows.tolist() == [7, 1]


def test_text_is_read_but_has_no_columns() -> None:
    traits = TextSource([np.zeros(100, dtype=np.uint8)], window=10).traits
    assert not traits.runs_user_code and traits.table is None


def test_a_dataset_knows_whether_it_draws_once_it_was_read() -> None:
    class Drawing:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, place: int) -> Any:
            return torch.tensor([random.random()])

    source = DatasetSource(Drawing())
    assert source.traits == Traits(draws=None)
    source.gather(np.arange(2))
    assert source.traits == Traits(draws=True)
