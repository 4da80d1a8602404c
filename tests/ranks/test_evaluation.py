"""Must show 5: 1,003 samples on 4 workers, each exactly once, with the metrics of one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import cordee
from cordee.train.jobfile import load_job
from harness import JOBS, Run, job_file, run_script, train

Reference = Callable[..., Run]


@pytest.fixture
def judged(reference: Reference, tmp_path: Path) -> tuple[Run, Run]:
    return reference("judged"), train("judged", tmp_path / "run", workers=4, traced=True)


def test_metrics_are_those_of_one_process(judged: tuple[Run, Run]) -> None:
    alone, four = judged
    assert set(four.result["test"]) == {"loss", "accuracy", "top5", "pair", "torchmetrics", "auroc"}
    for part in ("validation", "test"):
        for name, value in alone.result[part].items():
            assert four.result[part][name] == pytest.approx(value, rel=1e-12), (part, name)


def test_metrics_are_those_of_all_samples_at_once(judged: tuple[Run, Run]) -> None:
    from torchmetrics.functional.classification import multiclass_auroc

    _, four = judged
    job = load_job(job_file("judged"), {})
    samples = job.data.test.gather(np.arange(1003))
    assert len(job.data.test) == 1003
    with torch.no_grad():
        output = cordee.load(four.out)(samples["x"])
    target = samples["y"]
    right = float((output.argmax(1) == target).double().mean())
    fifth = output.gather(1, target[:, None]) >= output.topk(5).values[:, -1:]
    found = four.result["test"]
    assert found["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(output, target)), rel=1e-12)
    assert found["accuracy"] == found["pair"] == pytest.approx(right, rel=1e-12)
    assert found["torchmetrics"] == pytest.approx(right, rel=1e-6)  # torchmetrics divides in float32
    assert found["top5"] == pytest.approx(float(fifth.double().mean()), rel=1e-12)
    assert found["auroc"] == pytest.approx(float(multiclass_auroc(output, target, num_classes=10)), rel=1e-6)


def test_fewer_samples_than_workers(reference: Reference, tmp_path: Path) -> None:
    four = train("judged", tmp_path / "run", workers=4, samples=3)
    for name, value in reference("judged", samples=3).result["test"].items():
        assert four.result["test"][name] == pytest.approx(value, rel=1e-12), name


@pytest.mark.parametrize("workers", [1, 4])
def test_predictions_come_in_the_order_of_the_input(workers: int, warm: int, tmp_path: Path) -> None:
    run_script(JOBS / "predict.py", tmp_path / "run", str(tmp_path), workers=workers)
    for rank in range(workers):
        found = np.load(tmp_path / f"{rank}.npy")
        assert found.shape == (1003, 2)
        assert np.array_equal(found[:, 0], np.arange(1003))  # every sample once, in its own place
        np.testing.assert_allclose(found[:, 1], np.sin(np.arange(1003)), rtol=1e-12)
    seen = np.concatenate([np.load(tmp_path / f"seen-{rank}.npy") for rank in range(workers)])
    assert sorted(seen) == list(range(1003))
