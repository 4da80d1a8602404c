"""Activations that are computed again change nothing but memory: the curve and the model are those of one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cordee.core.errors import ModelError
from cordee.core.plan import Plan
from cordee.train.fitting import estimate_of_job
from cordee.train.jobfile import load_job
from harness import JOBS, Run, assert_same, run_script, train

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
    reference: Callable[..., Run], tmp_path: Path, job: str, plan: str, workers: int, settings: dict[str, Any]
) -> None:
    ends = {"steps": 6} if job == "cut_models" else {"stop_steps": 6}
    run = train(job, tmp_path / "run", workers=workers, plan=plan, **settings, **ends)
    assert_same(run, reference(job, **settings, **ends), loss=1e-10, tensor=1e-8)
    assert {one["worker"] for one in run.of("memory")} == set(range(workers))


CUT = [
    ("bert", "recompute=block,shard=params", 2),
    ("mlp", "recompute=block,shard=params,proportions=5:0:3", 3),  # pieces of which each holds several units
    ("llama", "recompute=selective,shard=gradients,tensor=2", 4),
    ("gpt", "recompute=block,pipeline=2", 2),
    ("llama", "recompute=selective,pipeline=2,schedule=interleaved", 2),
    ("vit", "recompute=block,tensor=2,pipeline=2,schedule=gpipe", 4),
    ("gpt2", "recompute=block,tensor=2,sequence=true", 2),
]
CUT_SLOW = [
    ("gpt", "recompute=selective,shard=optimizer,accumulate=3", 2),
    ("vit", "recompute=block,shard=params,shards=2", 4),
    ("gpt2", "recompute=block,shard=params,tensor=2", 4),
    ("mlp", "recompute=selective,shard=optimizer", 2),
    ("bert", "recompute=selective,pipeline=2,schedule=gpipe,micro_batches=3", 4),
    ("gpt", "recompute=block,pipeline=2,schedule=interleaved", 2),
    ("gpt2", "recompute=selective,tensor=2,pipeline=2", 4),
    ("gpt2", "recompute=block,pipeline=2,shard=params", 4),
    ("llama", "recompute=selective,tensor=2,sequence=true", 4),
]


@pytest.mark.parametrize(("model", "plan", "workers"), [*CUT, *(pytest.param(*one, marks=SLOW) for one in CUT_SLOW)])
def test_equals_one_process_where_a_replica_is_cut(
    reference: Callable[..., Run], tmp_path: Path, model: str, plan: str, workers: int
) -> None:
    job = {"mlp": "sliced", "gpt": "gpt"}.get(model, "cut_models")
    settings = {"kind": model} if job != "gpt" else {}
    ends = {"steps": 6} if job == "cut_models" else {"stop_steps": 6, "clip": 0.5}
    run = train(job, tmp_path / "run", workers=workers, plan=plan, **settings, **ends)
    assert_same(run, reference(job, **settings, **ends), loss=1e-10, tensor=1e-8)
    if "pipeline" in plan:
        assert all(one["activations"] > 0 for one in run.of("memory"))
    elif "tensor" not in plan:
        parsed = Plan.parse(plan)
        kept, again = (activations(job, one, workers, settings) for one in (replace(parsed, recompute="none"), parsed))
        assert {one["activations"] for one in run.of("memory")} == {again} and again < kept


def activations(job: str, plan: Plan, workers: int, settings: dict[str, Any]) -> int:
    """What each worker keeps for its share, by passes of the whole model in this process."""
    texts = {name: str(value) for name, value in settings.items()}
    needs = estimate_of_job(load_job(JOBS / f"{job}.py", texts), plan, workers)[0]
    assert needs.activations is not None
    return needs.activations


@pytest.mark.parametrize("cut", ["shard=none", "shard=params", "pipeline=2", "tensor=2,sequence=true"])
def test_dropout_draws_the_same_again(warm: int, tmp_path: Path, cut: str) -> None:
    runs = [
        train("cut_models", tmp_path / how, workers=2, plan=f"recompute={how},{cut}", kind="bert", drop=0.2, steps=3)
        for how in ("none", "block")
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
