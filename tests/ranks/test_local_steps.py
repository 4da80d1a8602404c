"""Local steps: replicas that merge every few steps, beside the same written by hand in one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordee.feed.share import Share
from harness import Run, assert_same, train
from replay import assert_audited, assert_replayed, parts_done

Reference = Callable[..., Run]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same samples in the same order, by one worker."""
    return train("uneven", tmp_path_factory.mktemp("alone") / "run")


@pytest.mark.parametrize(
    ("workers", "plan"), [(2, "sync=local"), (3, "sync=local,proportions=5:3:0"), (2, "sync=local,accumulate=3")]
)
def test_one_local_step_of_plain_sgd_is_all_reduce(
    workers: int, plan: str, reference: Reference, tmp_path: Path
) -> None:
    run = train("mlp", tmp_path / "run", workers=workers, plan=plan, optimizer="sgd")
    assert_same(run, reference("mlp", optimizer="sgd"))


@pytest.mark.parametrize("every", [4, 8])
def test_replicas_train_by_themselves_between_merges(every: int, reference: Reference, tmp_path: Path) -> None:
    plan = f"sync=local,local_steps={every},proportions=5:2"
    run = train("mlp", tmp_path / "run", workers=2, plan=plan, optimizer="momentum")
    assert [window["last"] for window in run.of("window")] == [*range(every, 10, every), 10]
    assert_replayed(run, "mlp", Share("proportional", (5.0, 2.0)), optimizer="momentum")
    same = reference("mlp", optimizer="momentum")
    assert_audited(run, same)
    assert float(np.abs(run.tensors["body.0.weight"] - same.tensors["body.0.weight"]).max()) > 1e-6  # not all-reduce


def test_an_outer_update_with_momentum(tmp_path: Path) -> None:
    plan = "sync=local,local_steps=3,proportions=5:2,outer=nesterov,outer_lr=0.6,outer_momentum=0.8"
    run = train("mlp", tmp_path / "run", workers=2, plan=plan, optimizer="momentum")
    share = Share("proportional", (5.0, 2.0))
    assert_replayed(run, "mlp", share, optimizer="momentum", outer_lr=0.6, outer_momentum=0.8)


@pytest.mark.parametrize(("codec", "outer"), [("bf16", False), ("int8", True), ("topk", False)])
def test_what_is_merged_is_compressed(codec: str, outer: bool, reference: Reference, tmp_path: Path) -> None:
    plan = f"sync=local,local_steps=3,proportions=5:3:2,compress={codec}" + ",outer=nesterov" * outer
    run = train("mlp", tmp_path / "run", workers=3, plan=plan, optimizer="momentum")
    outside = {"outer_lr": 0.7, "outer_momentum": 0.9} if outer else {}
    share = Share("proportional", (5.0, 3.0, 2.0))
    assert_replayed(run, "mlp", share, optimizer="momentum", codec=codec, **outside)
    assert_audited(run, reference("mlp", optimizer="momentum"))


def test_what_a_merge_left_out_is_resumed(tmp_path: Path) -> None:
    """With one step per merge and plain SGD, the resumed run is the one that was not stopped."""
    plan, settings = "sync=local,compress=topk", {"optimizer": "sgd", "save_steps": 4}
    train("mlp", tmp_path / "run", workers=2, plan=plan, stop_steps=4, **settings)
    run = train("mlp", tmp_path / "run", workers=2, plan=plan, resume=True, **settings)
    assert_same(run, train("mlp", tmp_path / "whole", workers=2, plan=plan, **settings))


@pytest.mark.parametrize("where", ["part:3", "merge:2"])
def test_compressed_merges_without_a_lost_worker(where: str, alone: Run, tmp_path: Path) -> None:
    plan, settings = "sync=local,local_steps=5,compress=int8", {"dies": 1, "where": where, "behind": -1}
    run = train("uneven", tmp_path / "run", workers=3, plan=plan, **settings)
    assert [event["worker"] for event in run.of("failure")] == [1]
    assert_audited(run, alone)
    assert_replayed(run, "uneven", codec="int8")


def test_the_momentum_of_the_outer_update_is_resumed(tmp_path: Path) -> None:
    plan, settings = "sync=local,local_steps=3,outer=nesterov", {"optimizer": "sgd", "save_steps": 3}
    train("mlp", tmp_path / "run", workers=2, plan=plan, stop_steps=6, **settings)
    run = train("mlp", tmp_path / "run", workers=2, plan=plan, resume=True, **settings)
    assert_replayed(run, "mlp", optimizer="sgd", outer_lr=0.7, outer_momentum=0.9)


def test_a_checkpoint_holds_the_merged_model(tmp_path: Path) -> None:
    """Saved in the middle of a window, and resumed on another number of workers: each step's samples come once."""
    settings: dict[str, Any] = {"optimizer": "sgd", "stop_steps": 5}
    plan = "sync=local,local_steps=4"
    train("mlp", tmp_path / "run", workers=2, plan=plan, **settings)
    run = train("mlp", tmp_path / "run", workers=3, plan=plan, resume=True, optimizer="sgd")
    whole = train("mlp", tmp_path / "whole", workers=1, optimizer="sgd")
    assert run.result["order_sha256"] == whole.result["order_sha256"]
    assert (run.result["samples_lost"], run.result["samples_repeated"]) == (0, 0)


def test_a_slow_worker_computes_less(alone: Run, tmp_path: Path) -> None:
    for workers in (2, 3):
        run = train("uneven", tmp_path / str(workers), workers=workers, plan="sync=local,local_steps=5", slow=1)
        parts = parts_done(run)
        assert sum(parts.values()) == 20 * workers and parts[1] < 20 < max(parts.values())
        assert all({1, 0} <= {item[0] for item in window["items"]} for window in run.of("window"))
        assert_audited(run, alone)
        assert_replayed(run, "uneven")


@pytest.mark.parametrize("save", [None, 3])
def test_a_window_ends_where_all_must_stop(save: int | None, alone: Run, tmp_path: Path) -> None:
    """At the end of an epoch, which has 10 steps, and at checkpoints; the rate of a schedule is that of its start."""
    settings: dict[str, Any] = {"schedule": True, "slow": 0, "optimizer": "adamw"}
    settings |= {} if save is None else {"save_steps": save}
    run = train("uneven", tmp_path / "run", workers=2, plan="sync=local,local_steps=7", **settings)
    ends = [7, 10, 17, 20] if save is None else [3, 6, 9, 10, 12, 15, 18, 20]
    assert [window["last"] for window in run.of("window")] == ends
    rates = [event["lr"] for event in run.of("step")]
    assert [rates[at] != rates[at - 1] for at in range(1, 20)] == [at in ends for at in range(1, 20)]
    assert_audited(run, alone)
    assert_replayed(run, "uneven", **settings)


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
    """Lost in the middle of a window, before a merge, or after it while another worker still waits for its result."""
    settings = {"dies": 1, "where": where, "behind": behind}
    run = train("uneven", tmp_path / "run", workers=workers, plan="sync=local,local_steps=5", **settings)
    assert [event["worker"] for event in run.of("failure")] == [1]
    what, number = where.split(":")
    merged = [any(item[0] == 1 for item in window["items"]) for window in run.of("window")].count(True)
    if what == "part":  # of those that it has done, the ones that no merge had reached are on record as another's
        assert parts_done(run).get(1, 0) <= int(number) and merged < 4
    else:
        if where == "merged:1":  # the first that asked for a part did not know of the loss: the other follows it
            assert [window["workers"] for window in run.of("window")][:3] == [[0, 1, 2], [0, 1, 2], [0, 2]]
        assert merged == int(number) - (what == "merge" or workers == 2)  # alone, the other has no result of it
    assert_audited(run, alone)
    assert_replayed(run, "uneven")


def test_the_worker_that_speaks_for_all_is_lost_after_a_merge(alone: Run, tmp_path: Path) -> None:
    """What it did not tell any more, another one tells."""
    settings = {"dies": 0, "where": "merged:1"}
    run = train("uneven", tmp_path / "run", workers=3, plan="sync=local,local_steps=5", **settings)
    assert [(window["first"], window["last"]) for window in run.of("window")] == [(1, 5), (6, 10), (11, 15), (16, 20)]
    assert_audited(run, alone)
    assert_replayed(run, "uneven")
