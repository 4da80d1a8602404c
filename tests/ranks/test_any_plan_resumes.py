"""Each plan saves and one whole worker goes on; one whole worker saves and each plan goes on: the undisturbed curve."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cordee.core.plan import Plan
from harness import Run, distance, train
from splits import MODELS, PLANS

STOP, STEPS = 10, 20
SAVES, LOADS = "saves", "loads"
OTHERS = ("llama", "mlp", "bert", "vit")
"""In turn: every third plan is tried with one of these too."""
FAST = [("data=2 × shard=params", "gpt", SAVES), ("data=2 × pipeline=2,schedule=zero-bubble", "gpt", LOADS)]
"""What other tests do not resume in every run: replicas that are sharded, and this schedule."""


def cases() -> list[Any]:
    chosen = [(plan, "gpt") for plan in PLANS]
    chosen += [(plan, OTHERS[turn % len(OTHERS)]) for turn, plan in enumerate(list(PLANS)[1::3])]
    every = [(plan, model, does) for plan, model in chosen for does in (SAVES, LOADS)]
    return [pytest.param(*one, marks=[] if one in FAST else [pytest.mark.slow]) for one in every]


@pytest.mark.parametrize(("name", "model", "does"), cases())
def test_the_next_losses_follow_the_undisturbed_curve(
    reference: Callable[..., Run], tmp_path: Path, name: str, model: str, does: str
) -> None:
    split, known = PLANS[name], MODELS[model]
    if why := Plan.parse(split.plan).refusals(split.workers):
        pytest.skip(why[0])
    alone = reference(known.job, **known.settings)
    epochs = [event["epoch"] for event in alone.of("step")]
    assert len(epochs) == STEPS and epochs[STOP - 1] == epochs[STOP], "it stops in the middle of an epoch"
    whole: dict[str, Any] = {"plan": "auto", "workers": 1}
    cut: dict[str, Any] = {"plan": known.plan(split), "workers": split.workers}
    first, then = (cut, whole) if does == SAVES else (whole, cut)
    stop = {word: STOP for word in known.settings if word in ("steps", "stop_steps")}
    train(known.job, tmp_path / "run", **known.settings | stop | first)
    run = train(known.job, tmp_path / "run", resume=True, **known.settings | then)
    assert [event["step"] for event in run.of("step")] == list(range(1, STEPS + 1)), "no step is done again"
    assert run.losses == pytest.approx(alone.losses, rel=1e-10)
    assert distance(run, alone) < 1e-8
    assert run.result["order_sha256"] == alone.result["order_sha256"]
