"""The checksum by which members see that they hold the same model."""

from __future__ import annotations

import pytest
import torch

from cordee.group.alike import checksum


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("count", [1, 7, 5_000])
def test_any_change_shows(dtype: torch.dtype, count: int) -> None:
    tensor = torch.ones(count, dtype=dtype)
    seen = {checksum([tensor])}
    for place in {0, count // 2, count - 1}:
        changed = tensor.clone()
        changed[place] = 0
        seen.add(checksum([changed]))
    assert len(seen) == 1 + len({0, count // 2, count - 1})
    assert checksum([tensor.clone()]) in seen


def test_signs_orders_and_shapes_show() -> None:
    signs = torch.ones(8_192, dtype=torch.float64)
    flipped = signs.clone()
    flipped[[3, 17]] = -1.0  # two of the highest bits
    orders = [torch.randperm(8_192, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    tensors = [signs, flipped, signs.view(64, 128), signs.float(), *orders]
    assert len({checksum([tensor]) for tensor in tensors}) == len(tensors)
    assert checksum([orders[0], orders[1]]) != checksum([orders[1], orders[0]])


def test_what_lies_askew_counts_by_its_numbers() -> None:
    whole = torch.arange(12.0).view(3, 4)
    assert checksum([whole.T]) == checksum([whole.T.contiguous()])
    assert checksum([torch.arange(9, dtype=torch.uint8)[1:]]) == checksum([torch.arange(1, 9, dtype=torch.uint8)])
    assert checksum([torch.empty(0), torch.tensor(1.0)]) != checksum([torch.tensor(1.0), torch.empty(0)])
