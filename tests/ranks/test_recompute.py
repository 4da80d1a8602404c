"""Activations that are computed again change nothing but memory: the curve and the model are those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cordee.core.errors import ModelError
from harness import JOBS, assert_same, run_script, train

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("job", "plan", "workers", "settings"),
    [
        ("gpt", "recompute=block,accumulate=2", 2, {}),
        ("gpt", "recompute=selective,tensor=2", 2, {}),
        ("cnn", "recompute=block", 3, {}),
        ("cnn", "recompute=selective,share=proportional,proportions=1:0", 2, {"cumulative": True}),
        ("cnn", "recompute=block", 1, {}),
        ("cut_models", "recompute=block", 2, {"kind": "llama"}),
        pytest.param("cut_models", "recompute=block,tensor=2", 4, {"kind": "gpt2"}, marks=SLOW),
        pytest.param("cut_models", "recompute=selective", 2, {"kind": "encoder"}, marks=SLOW),
        pytest.param("gpt", "recompute=block,compile=true", 2, {}, marks=SLOW),
        pytest.param("cnn", "recompute=selective,compile=true", 1, {}, marks=SLOW),
    ],
    ids=str,
)
def test_equals_one_process(
    warm: int, tmp_path: Path, job: str, plan: str, workers: int, settings: dict[str, Any]
) -> None:
    ends = {"steps": 6} if job == "cut_models" else {"stop_steps": 6}
    run = train(job, tmp_path / "run", workers=workers, plan=plan, **settings, **ends)
    assert_same(run, train(job, tmp_path / "alone", **settings, **ends), loss=1e-10, tensor=1e-8)
    assert {one["worker"] for one in run.of("memory")} == set(range(workers))


def test_dropout_draws_the_same_again(warm: int, tmp_path: Path) -> None:
    runs = [
        train("cut_models", tmp_path / plan, workers=2, plan=plan, kind="bert", drop=0.2, steps=5)
        for plan in ("recompute=none", "recompute=block")
    ]
    assert_same(runs[1], runs[0], loss=1e-10, tensor=1e-8)


def test_own_loop(warm: int, tmp_path: Path) -> None:
    losses = [
        run_script(JOBS / "own_loop.py", tmp_path / plan, str(tmp_path / plan), workers=2, plan=plan).losses
        for plan in ("recompute=none", "recompute=block")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-10) and losses[0]


def test_batchnorm_over_workers_is_not_compiled(warm: int, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="recompute=block does not work with compile=true here: block 'body'"):
        train("cnn", tmp_path / "run", workers=2, plan="recompute=block,compile=true", stop_steps=1)
