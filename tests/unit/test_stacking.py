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
        ([torch.zeros(22), torch.zeros(4)], "sample 0 is shape (22,), sample 1 is shape (4,)."),
        ([(torch.zeros(2), 1), (torch.zeros(3), 0)], "sample 0 is (shape (2,), int), sample 1 is (shape (3,), int)."),
        ([{"x": np.zeros(2)}, {"y": np.zeros(2)}], "sample 0 is {x: shape (2,)}, sample 1 is {y: shape (2,)}."),
        ([[1, 2, 3, 4], [1, 2, 3, 4, 5]], "sample 0 is 4 x int, sample 1 is 5 x int."),
        ([None, None], "sample 0 is NoneType."),
        ([object(), object()], "sample 0 is object."),
    ],
)
def test_samples_that_do_not_stack(samples: list[Any], told: str) -> None:
    source = DatasetSource(samples)
    with pytest.raises(DataError, match=re.escape(told) + ".*collate="):
        source.gather(np.arange(len(samples)))
    assert DatasetSource(samples, collate=len).gather(np.arange(2)) == 2
