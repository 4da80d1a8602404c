"""`sync=server,push=parameters`: servers merge what local steps come to, as `sync=local` does without servers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cordee.feed.share import Share
from harness import Run, assert_same, train
from replay import assert_audited, assert_replayed, parts_done

Reference = Callable[..., Run]
PUSH = "sync=server,push=parameters"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same samples in the same order, by one worker."""
    return train("uneven", tmp_path_factory.mktemp("alone") / "run")


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("workers", "plan", "settings"),
    [
        (2, "local_steps=4,proportions=5:2", {"optimizer": "momentum"}),
        (3, "local_steps=8,servers=2", {"optimizer": "sgd"}),
        (2, "local_steps=3,servers=2,backups=false", {"schedule": True}),
        (3, "local_steps=4,persist=false", {"idle": "all"}),
    ],
)
@pytest.mark.parametrize("outer", [{}, {"outer_lr": 0.6, "outer_momentum": 0.8}])
def test_servers_average_what_workers_push(
    workers: int, plan: str, settings: dict[str, Any], outer: dict[str, float], reference: Reference, tmp_path: Path
) -> None:
    outside = "".join(f",{name}={value}" for name, value in ({"outer": "nesterov"} | outer if outer else {}).items())
    run = train("mlp", tmp_path / "run", workers=workers, plan=f"{PUSH},{plan}{outside}", **settings)
    share = Share("proportional", (5.0, 2.0)) if "proportions" in plan else None
    assert_replayed(run, "mlp", share, **settings, **outer)
    assert_audited(run, reference("mlp", **settings))


@pytest.mark.parametrize(
    ("workers", "plan", "settings"),
    [
        (2, "servers=2", {}),
        (3, "proportions=5:3:0", {"optimizer": "momentum"}),
        (3, "outer=nesterov", {"optimizer": "momentum"}),
        (2, "servers=2,outer=nesterov,outer_momentum=0", {}),
        (2, "local_lr=same", {}),
    ],
)
def test_it_is_the_training_of_local_steps(workers: int, plan: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """With one step per window each worker computes its own part, so both runs compute the same."""
    pushed = train("mlp", tmp_path / "pushed", workers=workers, plan=f"{PUSH},{plan}", **settings)
    local = plan.replace("servers=2,", "").replace("servers=2", "")
    merged = train("mlp", tmp_path / "merged", workers=workers, plan=f"sync=local,{local}".rstrip(","), **settings)
    assert_same(pushed, merged)


@pytest.mark.parametrize("plan", ["local_steps=4", "local_steps=3,outer=nesterov"])
def test_one_worker_alone_pushes_too(plan: str, tmp_path: Path) -> None:
    run = train("mlp", tmp_path / "run", workers=1, plan=f"{PUSH},{plan}")
    assert run.result["resources"]["bytes_sent"] > 0
    assert_same(run, train("mlp", tmp_path / "local", workers=1, plan=f"sync=local,{plan}"))


def test_a_slow_worker_computes_less(alone: Run, tmp_path: Path) -> None:
    run = train("uneven", tmp_path / "run", workers=2, plan=f"{PUSH},local_steps=5,servers=2", slow=1)
    parts = parts_done(run)
    assert sum(parts.values()) == 40 and parts[1] < parts[0]
    assert_audited(run, alone)
    assert_replayed(run, "uneven")


@pytest.mark.parametrize(("codec", "outer"), [("bf16", False), ("int8", True), ("topk", False)])
def test_pushes_are_compressed(codec: str, outer: bool, reference: Reference, tmp_path: Path) -> None:
    plan = f"{PUSH},local_steps=3,proportions=5:3:2,compress={codec}" + ",outer=nesterov" * outer
    run = train("mlp", tmp_path / "run", workers=3, plan=plan, optimizer="momentum")
    outside = {"outer_lr": 0.7, "outer_momentum": 0.9} if outer else {}
    share = Share("proportional", (5.0, 3.0, 2.0))
    assert_replayed(run, "mlp", share, optimizer="momentum", codec=codec, **outside)
    assert_audited(run, reference("mlp", optimizer="momentum"))


# ------------------------------------------------------------- checkpoints


@pytest.mark.parametrize(("first", "then"), [(PUSH, "sync=local"), ("sync=local", f"{PUSH},servers=2"), (PUSH, PUSH)])
def test_the_outer_momentum_is_resumed(first: str, then: str, tmp_path: Path) -> None:
    settings, more = {"optimizer": "sgd", "save_steps": 3}, "local_steps=3,outer=nesterov"
    train("mlp", tmp_path / "run", workers=2, plan=f"{first},{more}", stop_steps=6, **settings)
    run = train("mlp", tmp_path / "run", workers=2, plan=f"{then},{more}", resume=True, **settings)
    assert_replayed(run, "mlp", optimizer="sgd", outer_lr=0.7, outer_momentum=0.9)


def test_a_run_changes_to_other_plans_and_back(reference: Reference, tmp_path: Path) -> None:
    """With one step per window and plain SGD all of them train what one process trains."""
    settings, out = {"optimizer": "sgd", "epochs": 3}, tmp_path / "run"
    train("mlp", out, workers=2, stop_steps=7, **settings)
    train("mlp", out, workers=3, plan=f"{PUSH},servers=2", resume=True, stop_steps=12, **settings)
    train("mlp", out, workers=2, plan="sync=server", resume=True, stop_steps=17, **settings)
    train("mlp", out, workers=2, plan=PUSH, resume=True, stop_steps=22, **settings)
    run = train("mlp", out, workers=3, resume=True, **settings)
    assert_same(run, reference("mlp", **settings))


def test_what_a_push_left_out_is_resumed(tmp_path: Path) -> None:
    """By merges without servers, which keep the same, and back."""
    settings = {"optimizer": "sgd", "save_steps": 4}
    whole = train("mlp", tmp_path / "whole", workers=2, plan="sync=local,compress=topk", **settings)
    train("mlp", tmp_path / "run", workers=2, plan=f"{PUSH},compress=topk", stop_steps=4, **settings)
    train("mlp", tmp_path / "run", workers=2, plan="sync=local,compress=topk", resume=True, stop_steps=8, **settings)
    run = train("mlp", tmp_path / "run", workers=2, plan=f"{PUSH},compress=topk", resume=True, **settings)
    assert_same(run, whole)


# ------------------------------------------------------------- jobs, and workers that are lost


@pytest.mark.parametrize(("job", "settings"), [("gpt", {"tokens": True}), ("rows", {}), ("cnn", {})])
def test_jobs_of_many_kinds(job: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """Weights by tokens, sparse gradients, which the workers' own optimizers apply, and BatchNorm."""
    pushed = train(job, tmp_path / "pushed", workers=2, plan=f"{PUSH},servers=2", **settings)
    assert_same(pushed, train(job, tmp_path / "merged", workers=2, plan="sync=local", **settings))


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("workers", "where", "behind"),
    [
        (3, "part:3", -1),
        (2, "part:7", -1),
        (3, "merge:2", -1),
        (3, "merged:1", 2),
        (3, "merged:2", 0),
        (2, "merged:3", 0),
    ],
)
def test_the_parts_of_a_lost_worker_are_done_again(
    workers: int, where: str, behind: int, alone: Run, tmp_path: Path
) -> None:
    """Lost in the middle of a window, before a merge, or after it while another worker still waits for its result.

    What the servers have merged is not done again, even if no other worker knew of it.
    """
    settings, plan = {"dies": 1, "where": where, "behind": behind}, f"{PUSH},local_steps=5,servers=2"
    run = train("uneven", tmp_path / "run", workers=workers, plan=plan, **settings)
    assert [event["worker"] for event in run.of("failure")] == [1]
    what, number = where.split(":")
    merged = [any(item[0] == 1 for item in window["items"]) for window in run.of("window")].count(True)
    if what == "part":
        assert parts_done(run).get(1, 0) <= int(number) and merged < 4
    else:
        assert merged == int(number) - (what == "merge")
    assert_audited(run, alone)
    assert_replayed(run, "uneven")


def test_a_worker_is_replaced(tmp_path: Path) -> None:
    """In between, the other one is alone: what it has pushed is what both go on from.

    Plain SGD in windows of one step, so it does not matter when the third one comes.
    """
    settings: dict[str, Any] = {"starts": tmp_path / "starts", "plain": True, "fates": "1:4:SIGKILL", "waits": "9"}
    run, merged = (
        train("replaced", tmp_path / plan[5:8], workers=2, plan=f"{plan},replace=true", **settings)
        for plan in (f"{PUSH},servers=2", "sync=local")
    )
    assert [(event["worker"], event["replaces"]) for event in run.of("joined")] == [(2, 1)]
    assert_same(run, merged)
