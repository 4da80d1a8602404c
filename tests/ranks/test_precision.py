"""Number formats, compiling and layout: what several workers train is what one trains in the same format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from cordee.core.errors import CordeeError, UsageError
from harness import Run, assert_same, command, job_file, run_script, train

Reference = Callable[..., Run]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_two_workers_train_as_one_in_the_same_format(precision: str, tmp_path: Path) -> None:
    plan = f"precision={precision}"
    one = train("mlp", tmp_path / "one", plan=plan, dtype="float32")
    two = train("mlp", tmp_path / "two", workers=2, plan=plan, dtype="float32")
    wide = train("mlp", tmp_path / "wide", dtype="float32")
    np.testing.assert_allclose(two.losses, one.losses, rtol=2e-3)
    np.testing.assert_allclose(one.losses, wide.losses, rtol=2e-2)
    assert np.abs(np.subtract(one.losses, wide.losses)).max() > 1e-5, "the format had no effect"
    assert one.tensors["body.0.weight"].dtype == np.float32


def test_a_gradient_that_does_not_fit_is_skipped_by_all_and_the_scale_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    # The same number of workers on both sides: a gradient at the very edge may fit or not, by its last bit.
    whole = train("overflow", tmp_path / "whole", workers=2, plan="precision=fp16")
    assert whole.result["steps_skipped"] >= 2
    assert whole.losses[-1] < whole.losses[0]
    first = train("overflow", tmp_path / "cut", workers=2, plan="precision=fp16", stop_steps=5).result["steps_skipped"]
    cut = train("overflow", tmp_path / "cut", workers=2, plan="precision=fp16", resume=True)
    assert cut.result["steps"] == whole.result["steps"]
    assert first + cut.result["steps_skipped"] == whole.result["steps_skipped"] > cut.result["steps_skipped"]
    np.testing.assert_allclose(cut.losses, whole.losses, rtol=1e-6)


def test_a_loop_of_ones_own_is_told_when_it_computes_in_another_format(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    body = """
        import torch
        from torch import nn
        import cordee

        data = cordee.data.digits()
        torch.manual_seed(0)
        with cordee.session() as s:
            model = s.prepare(nn.Linear(64, 10))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for batch in s.batches(data.train, batch=400, epochs=1):
                {with_}s.backward(nn.functional.cross_entropy(model(batch.x), batch.y))
                s.step(optimizer)
        """
    script.write_text(dedent(body).replace("{with_}", ""))
    with pytest.raises(UsageError, match="put the forward pass"):
        run_script(script, tmp_path / "bad", plan="precision=bf16")
    script.write_text(dedent(body).replace("{with_}", "with s.autocast():\n            "))
    assert len(run_script(script, tmp_path / "good", workers=2, plan="precision=bf16").losses) == 4


@pytest.mark.parametrize("workers", [1, 3])
def test_channels_last_trains_the_same_and_is_resumed(workers: int, reference: Reference, tmp_path: Path) -> None:
    plan = "layout=channels_last"
    train("cnn", tmp_path / "run", workers=workers, plan=plan, stop_steps=4)
    run = train("cnn", tmp_path / "run", workers=4 - workers, plan=plan, resume=True)
    assert_same(run, reference("cnn"))


def test_unfused_goes_on_where_fused_stopped(reference: Reference, tmp_path: Path) -> None:
    train("mlp", tmp_path / "run", workers=2, stop_steps=4)
    resumed = train("mlp", tmp_path / "run", workers=3, plan="fused=false", resume=True)
    assert_same(resumed, reference("mlp"))


@pytest.mark.parametrize(
    "plan",
    [
        "compile=true",
        "compile=true,shard=params",
        "compile=true,shard=gradients,accumulate=2",
        pytest.param("compile=true,shard=optimizer", marks=pytest.mark.slow),
    ],
)
def test_a_traced_model_trains_the_same(plan: str, reference: Reference, tmp_path: Path) -> None:
    """All of `compile=true` but the C++ compiler, which takes half a minute where its cache is empty."""
    assert_same(train("traced", tmp_path / "run", workers=2, plan=plan), reference("mlp"), loss=1e-9)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("job", "plan"),
    [
        *((job, "compile=true") for job in ("mlp", "cnn", "gpt")),
        ("gpt", "compile=true,shard=params"),
    ],
)
def test_a_compiled_model_trains_the_same(job: str, plan: str, reference: Reference, tmp_path: Path) -> None:
    assert_same(train(job, tmp_path / "run", workers=2, plan=plan), reference(job), loss=1e-9)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_copy_of_a_compiled_model_is_its_own(tmp_path: Path) -> None:
    assert len(run_script(job_file("copied"), tmp_path / "run", workers=2, plan="compile=true").losses) == 6


def test_what_cannot_be_compiled_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/compiler")
    with pytest.raises(CordeeError, match="compile=true"):
        train("mlp", tmp_path / "run", plan="compile=true", stop_steps=1)


@pytest.mark.gpu
@pytest.mark.parametrize("more", ["", ",accumulate=3", ",precision=bf16"])
def test_replayed_graphs_train_as_kernels_that_are_launched(more: str, tmp_path: Path) -> None:
    runs = []
    for graphs in ("false", "true", "auto"):
        plan, out = f"compile=true,graphs={graphs}{more}", tmp_path / graphs
        ended = command(
            "train", job_file("cnn"), "--device", "cuda", "--plan", plan, "--out", out, "--set", "dtype=float32"
        )
        assert ended.returncode == 0, ended.stderr
        runs.append(Run(out).losses)
    for replayed in runs[1:]:
        np.testing.assert_allclose(replayed, runs[0], rtol=1e-2 if "bf16" in more else 1e-4)
    assert len(runs[0]) > 5


@pytest.mark.gpu
def test_workers_that_share_a_gpu_train_as_one(tmp_path: Path) -> None:
    """In float64, with BatchNorm over the global batch; in float32 a GPU's TF32 hides everything below 1e-3."""
    runs = []
    for workers in (1, 2, 3):
        out = tmp_path / str(workers)
        options = ("--device", "cuda", "--workers", workers, "--set", "dtype=float64", "--out", out)
        ended = command("train", job_file("cnn"), *options)
        assert ended.returncode == 0, ended.stderr
        runs.append(Run(out))
    for shared in runs[1:]:
        np.testing.assert_allclose(shared.losses, runs[0].losses, rtol=1e-9)
        for name, tensor in runs[0].tensors.items():
            np.testing.assert_allclose(shared.tensors[name], tensor, rtol=1e-7, atol=1e-9, err_msg=name)
    assert len(runs[0].losses) > 5
