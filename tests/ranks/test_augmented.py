"""Batches that are changed on their device: the same training on any number of workers, and none in evaluation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import cordee
from cordee.core.errors import CordeeError
from cordee.train.jobfile import load_job
from harness import Run, assert_same, distance, job_file, train

Reference = Callable[..., Run]


@pytest.mark.parametrize(("workers", "plan"), [(2, "auto"), (3, "share=sampled")])
def test_augmented_training_is_that_of_one_worker(
    workers: int, plan: str, reference: Reference, tmp_path: Path
) -> None:
    alone = reference("augmented")
    several = train("augmented", tmp_path / "run", workers=workers, plan=plan)
    assert_same(several, alone, loss=1e-9)
    assert distance(alone, reference("augmented", augment="")) > 1e-3  # it changes something


def test_it_goes_on_as_if_it_had_not_stopped(reference: Reference, tmp_path: Path) -> None:
    train("augmented", tmp_path / "run", stop_steps=3)
    resumed = train("augmented", tmp_path / "run", workers=2, resume=True)
    assert distance(resumed, reference("augmented")) <= 1e-9


def test_evaluation_transforms_and_does_not_augment(reference: Reference) -> None:
    run = reference("augmented", traced=True)
    data = load_job(job_file("augmented"), {}).data
    raw = data.test.gather(np.arange(60))
    assert raw["x"].dtype == torch.uint8
    model = cordee.load(run.out)
    with torch.no_grad():
        right = (model(raw["x"].double() / 16).argmax(1) == raw["y"]).double().mean()
    assert run.result["test"]["accuracy"] == pytest.approx(float(right))
    plain = {"x": raw["x"].double() / 16}
    assert torch.equal(cordee.predict(model, data.test), cordee.predict(model, plain))


@pytest.mark.parametrize(("augment", "said"), [("odd", "cordee.data.draws"), ("mixed", "beside it")])
def test_what_would_depend_on_the_workers_is_refused(augment: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(CordeeError, match=said):
        train("augmented", tmp_path / "run", augment=augment)
