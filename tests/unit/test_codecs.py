"""Codecs: all replicas get the same numbers, and what is left out is not lost."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cordee.sync.lossy import CODECS
from exchange import exchange

SHAPES = ((64, 128), (128,), (128, 96), (7,), (3, 8, 5, 5), (1, 1))
SIZES = [torch.Size(shape).numel() for shape in SHAPES]
BYTES = {"bf16": 0.5, "fp16": 0.5, "int8": 0.26, "onebit": 0.036, "topk": 0.007, "powersgd": 0.12}
"""What a codec may send of one replica's float32 gradient."""


def windows_of(flat: Tensor) -> list[Tensor]:
    return [part.view(shape) for part, shape in zip(torch.split(flat, SIZES), SHAPES, strict=True)]


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_used_and_what_is_left_out_add_up(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    flats = [torch.randn(sum(SIZES), dtype=dtype) * 10.0**-number for number in range(3)]
    given = sum(flat.clone() for flat in flats)
    rests, _ = exchange(CODECS[name], flats, list(map(windows_of, flats)), [{}, {}, {}])
    assert all(torch.equal(flats[0], flat) for flat in flats)
    torch.testing.assert_close(flats[0] + sum(rests), given, rtol=0, atol=1e-4 if dtype is torch.float32 else 1e-12)


@pytest.mark.parametrize("name", CODECS)
def test_error_feedback_catches_up(name: str) -> None:
    """With a gradient that stays the same, the mean of what is used comes to it as steps go by."""
    torch.manual_seed(1)
    true = [torch.randn(sum(SIZES)) for _ in range(2)]
    rests, memories = [torch.zeros(sum(SIZES)) for _ in true], [{}, {}]
    used, distances = torch.zeros(sum(SIZES)), []
    for step in range(1, 201):
        flats = [gradient + rest for gradient, rest in zip(true, rests, strict=True)]
        rests, _ = exchange(CODECS[name], flats, list(map(windows_of, flats)), memories)
        used += flats[0]
        distances.append(float((used / step - sum(true)).norm() / sum(true).norm()))
    assert distances[-1] < 0.4 * max(distances[0], 1e-4)


@pytest.mark.parametrize("name", CODECS)
def test_it_is_smaller(name: str) -> None:
    flats = [torch.randn(sum(SIZES)) for _ in range(2)]
    _, sent = exchange(CODECS[name], flats, list(map(windows_of, flats)), [{}, {}])
    assert sent <= BYTES[name] * flats[0].nbytes


@pytest.mark.parametrize("name", CODECS)
def test_zeros_stay_zeros(name: str) -> None:
    flats = [torch.zeros(sum(SIZES)) for _ in range(2)]
    rests, _ = exchange(CODECS[name], flats, list(map(windows_of, flats)), [{}, {}])
    assert not any(one.any() for one in [*flats, *rests])


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_hidden(name: str, bad: float) -> None:
    flats = [torch.randn(sum(SIZES)) for _ in range(2)]
    flats[1][17] = bad
    exchange(CODECS[name], flats, list(map(windows_of, flats)), [{}, {}])
    assert not flats[0].isfinite().all()
