"""`sync=server,compress=...`: workers train what one process trains that reads the same messages, also after losses."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from cordee.core.events import Event, ServerEvent, StepEvent
from exchange import by_hand
from harness import Run, assert_same, train

Reference = Callable[..., Run]
PUSHED = ["bf16", "fp16", "int8", "onebit", "topk"]


@pytest.mark.parametrize("codec", PUSHED)
def test_servers_read_what_the_codec_says(codec: str, tmp_path: Path) -> None:
    plan = f"sync=server,compress={codec},proportions=5:3:2"
    run = train("mlp", tmp_path / "run", workers=3, plan=plan, optimizer="momentum")
    losses, weights = by_hand([codec], [5.0, 3.0, 2.0])
    np.testing.assert_allclose(run.losses, losses, rtol=0, atol=1e-9)
    for name, tensor in run.tensors.items():
        np.testing.assert_allclose(tensor, weights[name].numpy(), rtol=0, atol=1e-8)


def left_out(out: Path, step: int) -> float:
    """The largest number that a checkpoint holds of what was left out."""
    files = (out / "checkpoints" / f"step-{step:08}").glob("*.safetensors")
    found = [tensor for file in files for name, tensor in load_file(file).items() if "left out" in name]
    return max(float(np.abs(tensor).max()) for tensor in found)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("codec", PUSHED)
def test_what_was_left_out_is_resumed(codec: str, tmp_path: Path) -> None:
    plan, settings = f"sync=server,servers=2,compress={codec}", {"save_steps": 4, "optimizer": "sgd"}
    whole = train("mlp", tmp_path / "whole", workers=3, plan=plan, **settings)
    train("mlp", tmp_path / "run", workers=3, plan=plan, stop_steps=4, **settings)
    assert left_out(tmp_path / "run", 4) > 0
    run = train("mlp", tmp_path / "run", workers=3, plan=plan, resume=True, **settings)
    assert_same(run, whole)


def test_another_plan_resumes_it(tmp_path: Path) -> None:
    """All-reduce and servers keep the same: what one left out, the other sends."""
    out = tmp_path / "run"
    train("mlp", out, workers=3, plan="sync=server,mode=async,compress=topk", stop_steps=4)
    assert left_out(out, 4) > 0
    train("mlp", out, workers=2, plan="compress=int8", stop_steps=7, resume=True)
    run = train("mlp", out, workers=2, plan="sync=server,compress=bf16", resume=True)
    assert run.result["steps"] == 10 and run.result["samples_lost"] == run.result["samples_repeated"] == 0


@pytest.mark.parametrize("victims", [("first 0",), ("first 1", "backup 0"), ("first 0", "backup 0")])
def test_servers_are_killed(victims: tuple[str, ...], tmp_path: Path) -> None:
    """The curve of an undisturbed run: what is pushed again is what was pushed before."""
    pids: dict[str, int] = {}

    def strike(event: Event) -> None:
        if isinstance(event, ServerEvent) and event.what != "lost":
            pids[f"{event.what} {event.shard}"] = event.pid
        if isinstance(event, StepEvent) and event.step in (5, 11):
            for victim in victims:
                os.kill(pids[victim], signal.SIGKILL)
            struck.touch()

    plan, settings, struck = "sync=server,servers=2,compress=int8", {"epochs": 4}, tmp_path / "struck"
    whole = train("steady", tmp_path / "whole", workers=3, plan=plan, **settings)
    run = train("steady", tmp_path / "run", workers=3, plan=plan, listen=strike, awaits=struck, **settings)
    assert run.result["failures"] >= len(victims)
    assert_same(run, whole)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_worker_is_lost(mode: str, tmp_path: Path) -> None:
    plan = f"sync=server,servers=2,mode={mode},compress=int8"
    run = train("steady", tmp_path / "run", workers=3, plan=plan, fate="1:backward:10", save_steps=5)
    whole = train("steady", tmp_path / "whole", save_steps=5)
    assert [event["worker"] for event in run.of("failure")] == [1]
    assert run.result["order_sha256"] == whole.result["order_sha256"]
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0
    assert abs(run.losses[-1] - whole.losses[-1]) < 0.1 * whole.losses[0]


def test_a_worker_is_replaced(tmp_path: Path) -> None:
    """What the members have left out is divided among them anew."""
    settings = {"starts": tmp_path / "starts", "fates": "1:3:SIGKILL", "waits": "6"}
    run = train("replaced", tmp_path / "run", workers=3, plan="sync=server,compress=int8,replace=true", **settings)
    assert [(event["worker"], event["replaces"]) for event in run.of("joined")] == [(3, 1)]
    assert run.result["samples_lost"] == run.result["samples_repeated"] == 0
    alone = train("replaced", tmp_path / "alone", starts=tmp_path / "starts")
    assert run.result["order_sha256"] == alone.result["order_sha256"]
    assert abs(run.losses[-1] - alone.losses[-1]) < 0.01 * alone.losses[0]


def test_bytes_that_are_pushed(tmp_path: Path) -> None:
    """As the workers count them."""
    sent = {}
    for codec in ("none", "bf16", "int8", "topk"):
        plan = f"sync=server,compress={codec}"
        run = train("mlp", tmp_path / codec, workers=2, plan=plan, dtype="float32", save_steps=100)
        sent[codec] = sum(max(e["bytes_sent"] for e in run.of("usage") if e["worker"] == worker) for worker in (0, 1))
    assert sent["topk"] < sent["int8"] < sent["bf16"] < sent["none"]
