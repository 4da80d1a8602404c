"""Samples of a dataset that PyTorch cannot make a batch of: told with what they look like, and what to do."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from cordee.core.errors import DataError
from cordee.feed.dataset import DatasetSource


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        ([torch.zeros(22), torch.zeros(4)], "they are of shape (22,) and of shape (4,)"),
        ([(torch.zeros(2), 1), (torch.zeros(3), 0)], "they are of (shape (2,), int) and of (shape (3,), int)"),
        ([{"x": np.zeros(2)}, {"y": np.zeros(2)}], "they are of {x: shape (2,)} and of {y: shape (2,)}"),
        ([[1, 2, 3, 4], [1, 2, 3, 4, 5]], "they are of 4 x int and of 5 x int"),
        ([None, None], "they are NoneType"),
        ([object(), object()], "they are object"),
    ],
)
def test_samples_that_do_not_stack(samples: list[Any], told: str) -> None:
    source = DatasetSource(samples)
    with pytest.raises(DataError, match=re.escape(told) + ".*collate="):
        source.gather(np.arange(2))
    assert DatasetSource(samples, collate=len).gather(np.arange(2)) == 2
