"""Must show 1: any number of workers, any shares, the training of one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cordee.feed.batch import Batch
from cordee.train.jobfile import load_job
from harness import Run, assert_same, job_file, train

Reference = Callable[..., Run]

SHARES = {
    ("equal", 2): "share=equal",
    ("equal", 3): "share=equal",
    ("equal", 5): "share=equal",
    ("proportional", 2): "proportions=5:2",
    ("proportional", 3): "proportions=5:3:2",
    ("proportional", 5): "proportions=1:2:0.5:3:1",
    ("sampled", 2): "share=sampled",
    ("sampled", 3): "share=sampled",
    ("sampled", 5): "share=sampled",
}

# Each model with each number of workers, and each rule with each model and each number of workers.
MATRIX = [
    ("mlp", 2, "equal"),
    ("mlp", 3, "proportional"),
    ("mlp", 5, "sampled"),
    ("cnn", 2, "proportional"),
    ("cnn", 3, "sampled"),
    ("cnn", 5, "equal"),
    ("gpt", 2, "sampled"),
    ("gpt", 3, "equal"),
    ("gpt", 5, "proportional"),
]
WHOLE_MATRIX = [(job, workers, share) for job in ("mlp", "cnn", "gpt") for share, workers in SHARES]


@pytest.mark.parametrize("job", ["mlp", "cnn", "gpt"])
def test_one_worker_trains_as_a_loop_written_by_hand(job: str, reference: Reference) -> None:
    wanted = load_job(job_file(job), {})
    order = wanted.order(wanted.resolve(1))
    torch.set_num_threads(1)
    torch.manual_seed(wanted.seed)
    model = wanted.model().train()
    optimizer = wanted.optimizer(model.parameters())
    losses = []
    for step in range(order.steps):
        ids = order.ids(0, step)
        loss, _ = wanted.compute(model, Batch(ids, wanted.data.train.gather(ids)))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    run = reference(job)
    assert order.batch % 2 and order.batch % 3 and order.batch % 5 and order.size(order.steps - 1) < order.batch
    assert len(run.losses) == order.steps
    np.testing.assert_allclose(run.losses, losses, rtol=1e-12)
    for name, tensor in model.state_dict().items():
        if name in run.tensors:  # a tied weight is stored once
            assert float((tensor - torch.from_numpy(run.tensors[name])).abs().max()) <= 1e-9, name


@pytest.mark.parametrize(("job", "workers", "share"), MATRIX)
def test_float64(job: str, workers: int, share: str, reference: Reference, tmp_path: Path) -> None:
    assert_same(train(job, tmp_path / "run", workers=workers, plan=SHARES[share, workers]), reference(job))


@pytest.mark.slow
@pytest.mark.parametrize(("job", "workers", "share"), [one for one in WHOLE_MATRIX if one not in MATRIX])
def test_float64_the_rest(job: str, workers: int, share: str, reference: Reference, tmp_path: Path) -> None:
    assert_same(train(job, tmp_path / "run", workers=workers, plan=SHARES[share, workers]), reference(job))


@pytest.mark.parametrize(
    ("job", "workers", "share"), [("mlp", 5, "equal"), ("cnn", 3, "proportional"), ("gpt", 2, "sampled")]
)
def test_float32(job: str, workers: int, share: str, reference: Reference, tmp_path: Path) -> None:
    run = train(job, tmp_path / "run", workers=workers, plan=SHARES[share, workers], dtype="float32")
    assert_same(run, reference(job, dtype="float32"), loss=1e-5, tensor=None)


@pytest.mark.parametrize(
    ("job", "workers", "plan", "settings"),
    [
        pytest.param("cnn", 5, "auto", {"batch": 4, "stop_steps": 11}, id="more workers than samples in a batch"),
        pytest.param("mlp", 3, "proportions=0:1:3", {}, id="the worker that speaks for all gets nothing"),
        pytest.param("cnn", 3, "proportions=1:0:2,bucket_mb=0.01", {}, id="an empty share, BatchNorm and many buckets"),
        pytest.param("gpt", 3, "proportions=2:0:1", {"tokens": True}, id="an empty share and weights"),
        pytest.param("mlp", 3, "accumulate=3", {}, id="accumulation"),
        pytest.param("gpt", 3, "accumulate=3,share=sampled", {"tokens": True}, id="accumulation and weights"),
        pytest.param("mlp", 2, "accumulate=7", {"batch": 5, "stop_steps": 7}, id="more micro-batches than samples"),
        pytest.param("mlp", 3, "auto", {"clip": 0.05}, id="clipping"),
        pytest.param("cnn", 3, "proportions=3:0:1,accumulate=1", {"clip": 0.05}, id="clipping and an empty share"),
        pytest.param("gpt", 3, "auto", {"tokens": True}, id="weights"),
        pytest.param("gpt", 2, "auto", {"tied": False}, id="weights that are not tied"),
        pytest.param("mlp", 3, "auto", {"idle": "all"}, id="a parameter without gradient everywhere"),
        pytest.param(
            "mlp", 3, "auto", {"idle": "some", "batch": 13}, id="a parameter without gradient on some replicas"
        ),
        pytest.param("mlp", 5, "bucket_mb=0.01", {"idle": "some", "batch": 13}, id="the same in many buckets"),
        pytest.param("mlp", 3, "overlap=false", {"optimizer": "momentum"}, id="momentum"),
        pytest.param("mlp", 3, "auto", {"schedule": True, "epochs": 2}, id="a schedule"),
        pytest.param(
            "mlp", 3, "auto", {"schedule": True, "schedule_per": "epoch", "epochs": 3}, id="a schedule per epoch"
        ),
        pytest.param("mlp", 2, "auto", {"shuffle": "blocks"}, id="blocks"),
        pytest.param("mlp", 2, "auto", {"drop_last": True}, id="the short batch dropped"),
        pytest.param("cnn", 2, "auto", {"cumulative": True}, id="BatchNorm with cumulative averages"),
    ],
)
def test_whatever_the_job_asks_for(
    job: str, workers: int, plan: str, settings: dict[str, Any], reference: Reference, tmp_path: Path
) -> None:
    assert_same(train(job, tmp_path / "run", workers=workers, plan=plan, **settings), reference(job, **settings))


def test_a_parameter_without_gradient_stays_as_it_was(reference: Reference, tmp_path: Path) -> None:
    """Weight decay too touches only what has a gradient, as in one process."""
    torch.manual_seed(0)
    untouched = load_job(job_file("mlp"), {"idle": "all"}).model().state_dict()["extra.weight"]
    run = train("mlp", tmp_path / "run", workers=3, idle="all", optimizer="momentum")
    assert np.array_equal(run.tensors["extra.weight"], untouched.numpy())
    assert not np.array_equal(run.tensors["body.0.weight"], untouched.numpy())


def test_micro_batches_have_batchnorm_statistics_of_their_own(tmp_path: Path) -> None:
    """As everywhere with accumulation; but the same ones on any number of workers."""
    alone, three = (train("cnn", tmp_path / f"{workers}", workers=workers, plan="accumulate=3") for workers in (1, 3))
    assert_same(three, alone)


def test_batchnorm_of_each_replica_leaves_equal_buffers(reference: Reference, tmp_path: Path) -> None:
    run = train("cnn", tmp_path / "run", workers=3, plan="batchnorm=replica", epochs=2)
    one = reference("cnn", epochs=2)
    assert run.result["order_sha256"] == one.result["order_sha256"]
    assert run.result["steps"] == one.result["steps"]
    # Replica statistics are another training, but buffers are the replicas' mean, near those of one process.
    assert 1e-9 < np.abs(np.asarray(run.losses) - one.losses).max() < 0.5
    running = "body.1.running_mean"
    np.testing.assert_allclose(run.tensors[running], one.tensors[running], rtol=0.2, atol=0.02)


def test_no_worker_knows_the_order_before_the_others(reference: Reference) -> None:
    """Seeds and epochs change the order, and with it the hash of what was delivered."""
    hashes = {reference("mlp", seed=seed).result["order_sha256"] for seed in (0, 1)}
    hashes.add(reference("mlp", epochs=2).result["order_sha256"])
    assert len(hashes) == 3


def test_a_model_that_cannot_be_traced_is_a_note_and_not_a_flood(
    reference: Reference, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = train("mlp", tmp_path / "run", idle="some", stop_steps=1, traced=True)
    assert [event for event in run.of("warning") if "cannot be saved as a program" in event["message"]]
    assert "aten" not in capfd.readouterr().err
    assert not (run.out / "program.safetensors").exists()


def test_replica_statistics_are_those_of_whoever_had_samples(reference: Reference, tmp_path: Path) -> None:
    run = train("cnn", tmp_path / "run", workers=2, plan="batchnorm=replica,proportions=1:0")
    assert_same(run, reference("cnn"))
