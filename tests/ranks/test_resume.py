"""Must show 2: stopped at any step, continued on any number of workers, the training of one process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import cordee
from cordee.core.errors import CheckpointError, UsageError
from cordee.train.jobfile import load_job
from harness import Run, assert_audited, assert_same, distance, job_file, train

Reference = Callable[..., Run]


@pytest.mark.parametrize(
    ("job", "settings", "stops"),
    [
        ("mlp", {"epochs": 3, "schedule": True}, (1, 14)),
        ("mlp", {"epochs": 3, "optimizer": "momentum", "clip": 0.5}, (10, 29)),
        ("cnn", {"epochs": 2}, (4, 17)),
        ("gpt", {"epochs": 2, "tokens": True}, (3, 9)),
    ],
)
def test_three_then_two_then_five_workers(
    job: str, settings: dict[str, Any], stops: tuple[int, int], reference: Reference, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    train(job, out, workers=3, plan="proportions=3:1:2", stop_steps=stops[0], **settings)
    train(job, out, workers=2, plan="share=sampled", resume=True, stop_steps=stops[1], **settings)
    run = train(job, out, workers=5, resume=True, **settings)
    assert_same(run, reference(job, **settings))


def test_a_run_that_is_complete_stays_as_it_is(reference: Reference, tmp_path: Path) -> None:
    first = train("mlp", tmp_path / "run", workers=2, stop_steps=6)
    before = (first.result, first.tensors)
    for settings in ({"stop_steps": 6}, {"stop_steps": 5}):
        again = train("mlp", tmp_path / "run", workers=3, resume=True, **settings)
        for name in ("steps", "epochs", "samples", "loss", "order_sha256", "params_sha256"):
            assert again.result[name] == before[0][name], name
    whole = train("mlp", tmp_path / "run", workers=2, resume=True)
    assert_same(whole, reference("mlp"))
    again = train("mlp", tmp_path / "run", workers=1, resume=True)
    assert again.result["params_sha256"] == whole.result["params_sha256"]
    assert again.result["steps"] == 10 and again.result["loss"] == whole.result["loss"]


def test_a_run_whose_end_was_lost_goes_on_from_its_last_checkpoint(reference: Reference, tmp_path: Path) -> None:
    """Steps after the checkpoint are done again, and are the same again."""
    out = tmp_path / "run"
    train("mlp", out, workers=3, save_steps=4, stop_steps=9)
    kept = sorted((out / "checkpoints").iterdir())
    assert [path.name for path in kept] == ["step-00000004", "step-00000008", "step-00000009"]
    for file in kept[-1].iterdir():
        file.unlink()
    kept[-1].rmdir()
    run = train("mlp", out, workers=2, resume=True)
    assert [event["step"] for event in run.of("step")] == [*range(1, 10), 9, 10]
    assert run.losses[8] == pytest.approx(run.losses[9], rel=1e-12)
    alone = reference("mlp")
    assert run.result["order_sha256"] == alone.result["order_sha256"]
    assert distance(run, alone) <= 1e-9


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "damage", "why", "plan"),
    [
        ("tensors-00000.safetensors", flip_a_bit, "its SHA-256 is not the one that was written", "auto"),
        ("tensors-00000.safetensors", lambda path: os.truncate(path, 999), "it has 999 bytes instead of", "auto"),
        ("tensors-00001.safetensors", flip_a_bit, "its SHA-256 is not the one that was written", "shard=params"),
        ("checkpoint.json", flip_a_bit, "", "auto"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(  # also if another worker's part of it is
    file: str, damage: Callable[[Path], object], why: str, plan: str, reference: Reference, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    train("mlp", out, workers=2, plan=plan, save_steps=4, stop_steps=9)
    damage(out / "checkpoints" / "step-00000009" / file)
    run = train("mlp", out, workers=2, plan=plan, resume=True)
    (note,) = [one["message"] for one in run.of("warning") if "checkpoint" in one["message"]]
    assert note.startswith(f"an older checkpoint is used: {out / 'checkpoints' / 'step-00000009' / file} is damaged: ")
    assert why in note
    assert [event["step"] for event in run.of("step")] == [*range(1, 10), 9, 10]
    alone = reference("mlp")
    assert run.result["order_sha256"] == alone.result["order_sha256"]
    assert distance(run, alone) <= 1e-9
    assert_audited(run)


def test_where_all_checkpoints_are_damaged_none_is_loaded(warm: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train("mlp", out, workers=2, save_steps=4, stop_steps=6)
    for path in (out / "checkpoints").iterdir():
        flip_a_bit(path / "tensors-00000.safetensors")
    with pytest.raises(
        CheckpointError, match=r"no intact checkpoint in .*: .*step-00000006.* is damaged: .*; start without"
    ):
        train("mlp", out, workers=2, resume=True)


@pytest.mark.parametrize(("settings", "least"), [({"save_steps": 3}, 4), ({"save_seconds": 0.0}, 3)])
def test_checkpoints_by_steps_and_by_seconds(settings: dict[str, Any], least: int, warm: int, tmp_path: Path) -> None:
    run = train("mlp", tmp_path / "run", workers=2, **settings)
    steps = [event["step"] for event in run.of("checkpoint")]
    assert len(steps) >= least and steps[-1] == 10 and steps == sorted(set(steps))
    assert len(list((run.out / "checkpoints").iterdir())) == 3  # the last three are kept


def test_another_job_or_other_data_is_refused(warm: int, tmp_path: Path) -> None:
    train("mlp", tmp_path / "run", stop_steps=2)
    with pytest.raises(CheckpointError, match="another data"):
        train("mlp", tmp_path / "run", resume=True, samples=900)
    with pytest.raises(CheckpointError, match=r"another batch.*101.*50"):
        train("mlp", tmp_path / "run", workers=2, resume=True, batch=50)
    with pytest.raises(CheckpointError, match="parameters in groups"):
        train("mlp", tmp_path / "run", resume=True, idle="all")
    with pytest.raises(UsageError, match="holds a run already"):
        train("mlp", tmp_path / "run")


def test_start_from_existing_weights(reference: Reference, tmp_path: Path) -> None:
    first = reference("cnn")
    checkpoint = max((first.out / "checkpoints").iterdir())
    starts = {"run": first.out, "checkpoint": checkpoint, "file": first.out / "model.safetensors"}
    runs = {
        name: train("cnn", tmp_path / name, workers=1 + 2 * (name == "run"), start_from=path, stop_steps=3, seed=5)
        for name, path in starts.items()
    }
    assert runs["run"].losses[0] < 0.9 * first.losses[0]
    for run in runs.values():
        assert run.result["steps"] == 3
        assert_same(run, runs["file"])


def test_start_from_a_file_as_hugging_face_writes_it(reference: Reference, tmp_path: Path) -> None:
    """The tied head has no name in it, and a tensor is missing: the run says so, and starts alike everywhere."""
    weights = dict(reference("gpt").tensors)
    assert "head.weight" not in weights
    *_, left_out = (name for name in weights if name.endswith(".bias"))
    weights.pop(left_out)
    save_file(weights, tmp_path / "model.safetensors")
    asked = {"start_from": tmp_path / "model.safetensors", "stop_steps": 2, "seed": 5}
    run = train("gpt", tmp_path / "two", workers=2, **asked)
    (note,) = [one["message"] for one in run.of("warning") if "start_from took" in one["message"]]
    assert f"begin as the model makes them: {left_out}" in note and "head" not in note
    assert run.losses[0] < 0.9 * reference("gpt").losses[0]
    assert_same(run, train("gpt", tmp_path / "one", **asked))


@pytest.mark.parametrize("job", ["mlp", "cnn", "gpt"])
def test_load_gives_the_trained_model(job: str, reference: Reference, tmp_path: Path) -> None:
    run = train(job, tmp_path / "run", workers=3, plan="share=sampled", traced=True)
    wanted = load_job(job_file(job), {})
    samples = wanted.data.validation.gather(np.arange(50))
    made = wanted.model()
    missing, _ = made.load_state_dict({name: torch.from_numpy(one) for name, one in run.tensors.items()}, strict=False)
    assert missing == (["head.weight"] if job == "gpt" else [])  # tied: stored once
    made.eval()
    alone = cordee.load(reference(job, traced=True).out)
    with torch.no_grad():
        expected = made(samples["x"])
        for loaded in (cordee.load(run.out), cordee.load(run.out, model=wanted.model)):
            assert float((loaded(samples["x"]) - expected).abs().max()) <= 1e-12
        assert float((alone(samples["x"]) - expected).abs().max()) <= 1e-9
