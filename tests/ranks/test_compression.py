"""Compressed gradients: what workers train is what one process trains that exchanges the same messages with itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from cordee.sync.lossy import CODECS
from exchange import by_hand
from harness import assert_same, train


@pytest.mark.parametrize("codec", CODECS)
def test_workers_train_what_the_codec_says(codec: str, tmp_path: Path) -> None:
    run = train("mlp", tmp_path / "run", workers=3, plan=f"compress={codec},proportions=5:3:2", optimizer="momentum")
    losses, weights = by_hand([codec], [5.0, 3.0, 2.0])
    np.testing.assert_allclose(run.losses, losses, rtol=0, atol=1e-9)
    for name, tensor in run.tensors.items():
        np.testing.assert_allclose(tensor, weights[name].numpy(), rtol=0, atol=1e-8)
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0


def test_the_way_is_changed_between_steps(tmp_path: Path) -> None:
    """What one codec has left out goes with the next step, whichever way that is sent."""
    plan, choices = "sync=auto,proportions=5:3:2", ["int8", "topk", "none", "bf16"]
    run = train("switching", tmp_path / "run", workers=3, plan=plan, choices=" ".join(choices))
    losses, weights = by_hand(["none", *(one for one in choices for _ in range(2)), "none"], [5.0, 3.0, 2.0])
    np.testing.assert_allclose(run.losses, losses, rtol=0, atol=1e-9)
    for name, tensor in run.tensors.items():
        np.testing.assert_allclose(tensor, weights[name].numpy(), rtol=0, atol=1e-8)
    told = [(event["step"], event["before"], event["choice"]) for event in run.of("decision")]
    assert told == [
        (2, "none", "int8"),
        (4, "int8", "topk"),
        (6, "topk", "none"),
        (8, "none", "bf16"),
        (10, "bf16", "none"),
    ]


def test_where_the_link_is_fast_sums_stay_exact(tmp_path: Path) -> None:
    run = train("mlp", tmp_path / "run", workers=2, plan="sync=auto,faithful=same")
    assert_same(run, train("mlp", tmp_path / "alone"))
    assert [event["choice"] for event in run.of("decision")] == ["none"]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("codec", ["bf16", "fp16", "int8", "topk"])
def test_what_was_left_out_is_resumed(codec: str, tmp_path: Path) -> None:
    """PowerSGD begins with other columns after a resume, so it is not compared."""
    plan, settings = f"compress={codec}", {"save_steps": 4, "optimizer": "sgd"}
    whole = train("mlp", tmp_path / "whole", workers=3, plan=plan, **settings)
    train("mlp", tmp_path / "run", workers=3, plan=plan, stop_steps=4, **settings)
    files = (tmp_path / "run" / "checkpoints" / "step-00000004").glob("*.safetensors")
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert any("left out" in name and np.abs(tensor).max() > 0 for name, tensor in tensors.items())
    run = train("mlp", tmp_path / "run", workers=3, plan=plan, resume=True, **settings)
    assert_same(run, whole)


def test_another_plan_resumes_it(tmp_path: Path) -> None:
    train("mlp", tmp_path / "run", workers=3, plan="compress=int8", stop_steps=4)
    train("mlp", tmp_path / "run", workers=2, plan="compress=topk", stop_steps=7, resume=True)
    run = train("mlp", tmp_path / "run", workers=2, resume=True)
    assert run.result["steps"] == 10 and run.result["samples_lost"] == run.result["samples_repeated"] == 0


@pytest.mark.parametrize("codec", ["int8", "powersgd"])
def test_a_worker_is_lost(codec: str, tmp_path: Path) -> None:
    run = train("falling", tmp_path / "run", workers=3, plan=f"compress={codec}", dies=1)
    assert [event["worker"] for event in run.of("failure")] == [1]
    whole = train("falling", tmp_path / "whole", workers=1, dies=-1)
    assert run.result["order_sha256"] == whole.result["order_sha256"]
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0
    assert abs(run.losses[-1] - whole.losses[-1]) < 0.1 * whole.losses[0]


def test_bytes_that_are_sent(tmp_path: Path) -> None:
    """As the workers count them: of the gradient, a codec sends what its file says; without it all send the same."""
    sent, plain = {}, {}
    for codec in ("none", "bf16", "int8"):
        run = train("mlp", tmp_path / codec, workers=2, plan=f"compress={codec}", dtype="float32")
        last = [[one for one in run.of("usage") if one["worker"] == worker][-1] for worker in (0, 1)]
        assert all(one["bytes_near"] == one["bytes_sent"] > 0 for one in last), "nothing leaves this host"
        assert all(one["bytes_plain"] >= one["bytes_sent"] for one in last)
        steps = run.of("times")
        sent[codec], plain[codec] = (sum(sum(one[name]) for one in steps) for name in ("sent", "plain"))
    assert sent["int8"] < sent["bf16"] < sent["none"] == plain["none"]
    assert plain["bf16"] == plain["int8"] == pytest.approx(plain["none"], rel=0.05)  # the record has its own bucket


def test_a_worker_is_replaced(tmp_path: Path) -> None:
    """What the members have left out is divided among them anew."""
    settings = {"starts": tmp_path / "starts", "fates": "1:3:SIGKILL", "waits": "6"}
    run = train("replaced", tmp_path / "run", workers=3, plan="compress=int8,replace=true", **settings)
    assert [(event["worker"], event["replaces"]) for event in run.of("joined")] == [(3, 1)]
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0
    alone = train("replaced", tmp_path / "alone", starts=tmp_path / "starts")
    assert run.result["order_sha256"] == alone.result["order_sha256"]
    assert abs(run.losses[-1] - alone.losses[-1]) < 0.01 * alone.losses[0]


def test_parameters_that_come_after_a_checkpoint(tmp_path: Path) -> None:
    """What was left out of others before is not taken for theirs."""
    file = tmp_path / "unfrozen.py"
    file.write_text(UNFROZEN)
    for plan in ("compress=int8", "sync=local,local_steps=2,outer=nesterov"):
        run = train(file, tmp_path / plan[:4], workers=2, plan=plan)
        assert run.result["steps"] == 8 and np.isfinite(run.losses).all()


UNFROZEN = """
import torch, cordee
from torch import nn

class Unfreeze(cordee.Callback):
    def on_step(self, session, done):
        if done.steps == 4:
            model[0].requires_grad_(True)

model = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
model[0].requires_grad_(False)
job = cordee.Job(
    model=lambda: model, loss=nn.functional.cross_entropy, optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    data=cordee.data.digits(), batch=101, callbacks=[Unfreeze()], save=cordee.Save(steps=3), stop=cordee.Stop(steps=8),
)
"""
