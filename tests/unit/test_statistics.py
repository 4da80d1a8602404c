"""What is told of a column: exact where it says nothing else, whatever the width."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cordee.feed.store.statistics import Summary, merged, summary_of


def told_of(column: np.ndarray, parts: int) -> dict[str, Any]:
    """Put together from so many parts, as a build does."""
    whole, origins = Summary(), np.random.default_rng(1).integers(0, 2**63, len(column)).astype(np.uint64)
    for rows, of_rows in zip(np.array_split(column, parts), np.array_split(origins, parts), strict=True):
        whole = merged(whole, summary_of(rows, of_rows))
    return whole.describe()


@pytest.mark.parametrize("width", [1, 16, 17, 700])
def test_missing_least_and_most_are_exact(width: int) -> None:
    """One number of a million would be found: at any row, of any width."""
    for row in (0, 5, 399):
        column = np.random.default_rng(0).random((400, width))
        column[row, -1], column[(row + 1) % 400, 0], column[(row + 2) % 400, 0] = np.nan, 1e6, -np.inf
        told = told_of(column, 3)
        finite = column[np.isfinite(column)]
        assert (told["count"], told["missing"], told["infinite"]) == (400, 1, 1)
        assert (told["least"], told["most"]) == (finite.min(), 1e6)
        if width <= 16:
            assert told["mean"] == pytest.approx(finite.mean()) and told["std"] == pytest.approx(finite.std())
            assert "mean_of_rows" not in told
        else:
            assert 0 < told["mean_of_rows"] < 100, "it says of how many rows the mean is"


def test_a_wide_column_of_nothing_but_nan_has_no_bounds() -> None:
    told = told_of(np.full((50, 20), np.nan), 2)
    assert told == {"count": 50, "missing": 1000}


def test_wide_whole_numbers() -> None:
    pixels = np.random.default_rng(0).integers(3, 200, (300, 3, 8, 8)).astype(np.uint8)
    pixels[7, 2, 1, 0], pixels[8, 0, 0, 0] = 255, 0
    told = told_of(pixels, 4)
    assert (told["least"], told["most"], told["missing"]) == (0, 255, 0)
    assert told["mean"] == pytest.approx(101, abs=2)


def test_what_sets_large_numbers_apart_is_not_rounded_away() -> None:
    """Seconds of one minute, of this century: their squares have no digit left for it."""
    moments = 1.7e9 + np.random.default_rng(0).random(100_000) * 60
    for column in (moments, moments.astype(np.int64), np.append(moments[::-1], np.nan)):
        told, finite = told_of(column, 3), column[np.isfinite(column)]
        assert told["mean"] == pytest.approx(finite.mean(), rel=1e-15)
        assert told["std"] == pytest.approx(finite.std(), rel=1e-9)
    for scale in (1e-30, 1e-3, 1.0, 1e30):
        column = (np.random.default_rng(0).standard_normal(150_000) * scale + 3 * scale).astype(np.float32)
        told = told_of(column, 2)
        assert told["mean"] == pytest.approx(column.mean(dtype=np.float64), rel=1e-8)
        assert told["std"] == pytest.approx(column.astype(np.float64).std(), rel=1e-7)
    huge = told_of(np.array([1e308, -1e308, 1.0]), 1)
    assert huge["most"] == 1e308 and np.isfinite(huge["std"])
