"""What a metric may return: one value for each sample, or a pair of sum and count."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cordee.core.errors import JobError
from cordee.train.metrics import SumTally

OUTPUT = torch.arange(8.0).reshape(8, 1)
TARGET = torch.zeros(8, 1)


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (lambda o, t: (o - t).square().mean().sqrt(), "one number for 8 samples.*one value per sample, or"),
        (lambda o, t: float(o.mean()), "one number for 8 samples.*one value per sample, or"),
        (lambda o, t: (o - t).abs(), r"\(8, 1\).*add \.squeeze\(1\)"),
        (lambda o, t: torch.zeros(8, 5), r"\(8, 5\).*\.flatten\(1\)\.mean\(1\)"),
        (lambda o, t: torch.zeros(3), r"\(3,\) for 8 samples.*one value per sample"),
        (lambda o, t: (o, len(t)), r"\(8, 1\), \(\).*pair \(sum, count\)"),
        (lambda o, t: (o.sum(), len(t), 1), "pair"),
    ],
    ids=["mean", "float", "column", "rows", "others", "sums", "three"],
)
def test_anything_else_is_refused_with_advice(metric: Any, words: str) -> None:
    with pytest.raises(JobError, match=f"metric 'odd' gives.*{words}"):
        SumTally("odd", metric).update(OUTPUT, TARGET)


@pytest.mark.parametrize(
    "metric",
    [lambda o, t: o[:, 0], lambda o, t: (o.sum(), len(t)), lambda o, t: (float(o.sum()), torch.tensor(len(t)))],
    ids=["values", "pair", "numbers"],
)
@pytest.mark.parametrize("cut", [1, 3, 7])
def test_the_value_does_not_depend_on_the_cut(metric: Any, cut: int) -> None:
    tally = SumTally("mean", metric)
    for part in (slice(0, cut), slice(cut, 8)):
        tally.update(OUTPUT[part], TARGET[part])
    assert tally.value() == 3.5


def test_of_one_sample_a_number_is_its_value() -> None:
    tally = SumTally("squeezed", lambda o, t: o.squeeze())
    for part in (slice(0, 7), slice(7, 8)):  # the second gives a number without a dimension
        tally.update(OUTPUT[part], TARGET[part])
    assert tally.value() == 3.5
