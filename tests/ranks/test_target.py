"""Metrics where the target of a batch is not called y: by its usual name, or by the one that the job gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cordee.core.errors import JobError
from cordee.feed.batch import Batch, target_of
from harness import assert_same, train

X, LABELS, OTHER = torch.zeros(2, 3), torch.ones(2), torch.full((2,), 2.0)

JOB = """
from torch import nn, optim
import cordee

def objective(model, batch):
    output = model(batch.fields["pixels"])
    return nn.functional.cross_entropy(output, batch.fields["labels"]), output

def job(target: str = "") -> cordee.Job:
    digits = cordee.data.digits()
    parts = {"train": digits.train, "validation": digits.validation}
    named = {}
    for part, source in parts.items():
        fields = source.gather(ids_of(len(source)))
        named[part] = {"pixels": fields["x"].double(), "labels": fields["y"], "rank": 9 - fields["y"]}
    return cordee.Job(
        model=lambda: nn.Linear(64, 10).double(), objective=objective, optimizer=lambda p: optim.SGD(p, lr=0.5),
        data=named, batch=300, metrics={"accuracy": cordee.metrics.accuracy}, target=target or None,
    )

def ids_of(count):
    import numpy
    return numpy.arange(count)
"""


@pytest.mark.parametrize(
    ("fields", "name", "wanted"),
    [
        ({"x": X, "y": LABELS, "labels": OTHER}, None, LABELS),
        ({"input_ids": X, "labels": LABELS}, None, LABELS),
        ({"x": X, "target": LABELS}, None, LABELS),
        ({"x": X, "y": OTHER, "next": LABELS}, "next", LABELS),
        ((X, LABELS), None, LABELS),
        ((X, OTHER, LABELS), 2, LABELS),
        (LABELS, "x", LABELS),
    ],
)
def test_the_target_of_a_batch(fields: object, name: str | int | None, wanted: torch.Tensor) -> None:
    assert target_of(Batch(np.arange(2), fields), name) is wanted  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "name", "words"),
    [
        ({"x": X, "label": X, "targets": X}, None, r"the fields x, label, targets: both label and targets. .*target="),
        ({"input_ids": X, "mask": X}, None, r"the fields input_ids, mask: no field y. Say which one is the target"),
        ({"x": X, "y": X}, "labels", r"target='labels': a batch holds the fields x, y"),
        ((X, X), 2, "target=2: a batch holds the fields 0 to 1, without names"),
    ],
)
def test_a_target_that_is_not_clear_is_refused(fields: object, name: str | int | None, words: str) -> None:
    with pytest.raises(JobError, match=words):
        target_of(Batch(np.arange(2), fields), name)  # type: ignore[arg-type]


def test_metrics_by_the_field_of_the_target(warm: int, tmp_path: Path) -> None:
    file = tmp_path / "named.py"
    file.write_text(JOB)
    one = train(file, tmp_path / "one")
    assert one.result["validation"]["accuracy"] > 0.5
    assert_same(train(file, tmp_path / "two", workers=2), one)
    assert train(file, tmp_path / "other", target="rank").result["validation"]["accuracy"] < 0.5
