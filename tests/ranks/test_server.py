"""`sync=server`: parameter servers train what one process trains, and their state is an ordinary checkpoint's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cordee.core.errors import PlanError
from harness import Run, assert_same, train

Reference = Callable[..., Run]


@pytest.mark.parametrize(
    ("job", "workers", "plan", "settings"),
    [
        ("mlp", 2, "servers=2", {"schedule": True}),
        ("mlp", 3, "proportions=5:0:2,servers=3", {"optimizer": "momentum", "clip": 0.5}),
        ("mlp", 2, "backups=false,accumulate=3", {"idle": "some"}),
        ("cnn", 2, "proportions=5:2,servers=2", {}),
        ("gpt", 3, "share=sampled,servers=2,overlap=false", {"tokens": True}),
    ],
)
def test_servers_train_as_one_process(
    job: str, workers: int, plan: str, settings: dict[str, Any], reference: Reference, tmp_path: Path
) -> None:
    run = train(job, tmp_path / "run", workers=workers, plan=f"sync=server,{plan}", **settings)
    assert_same(run, reference(job, **settings))


def test_a_run_changes_from_all_reduce_to_servers_and_back(reference: Reference, tmp_path: Path) -> None:
    settings, out = {"epochs": 3, "schedule": True}, tmp_path / "run"
    train("mlp", out, workers=2, stop_steps=7, **settings)
    train("mlp", out, workers=3, plan="sync=server,servers=2", resume=True, stop_steps=14, **settings)
    train("mlp", out, workers=1, plan="sync=server,servers=3", resume=True, stop_steps=21, **settings)
    run = train("mlp", out, workers=2, resume=True, **settings)
    assert_same(run, reference("mlp", **settings))


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("servers=2", "set sync=server"),
        ("sync=server,precision=fp16", "precision=fp16"),
        ("sync=server,tensor=2", "tensor=2 does not work with sync=server"),
        ("sync=server,compress=int8", "compress=int8"),
    ],
)
def test_plans_that_are_refused(plan: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=words):
        train("mlp", tmp_path / "run", workers=2, plan=plan)
