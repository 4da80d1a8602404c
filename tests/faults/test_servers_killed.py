"""Parameter servers die or are stopped, alone, in pairs and with workers: the training of one process, none lost."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from cordee.core.errors import WorkersLost
from harness import Run, assert_same, distance, train
from strike import Strikes

Reference = Callable[..., Run]
SETTINGS = {"epochs": 4}


@pytest.mark.parametrize(
    "strikes",
    [
        [(5, ("first 0",), signal.SIGKILL, 0.0)],
        [(5, ("backup 1",), signal.SIGKILL, 0.002)],
        [(5, ("first 0", "backup 1"), signal.SIGKILL, 0.001)],
        [(5, ("first 0",), signal.SIGSTOP, 0.0)],
        [(5, ("first 0", "backup 0"), signal.SIGKILL, 0.0), (30, ("first 0", "backup 0"), signal.SIGKILL, 0.003)],
        [(5, ("first 1", "worker 1"), signal.SIGKILL, 0.003)],
        [
            (5, ("first 0",), signal.SIGKILL, 0.0),
            (30, ("first 0",), signal.SIGKILL, 0.001),
            (40, ("first 1",), signal.SIGKILL, 0.0),
        ],
    ],
    ids=["first", "backup", "one of each", "stopped", "both", "server and worker", "again and again"],
)
def test_servers_are_lost(
    strikes: list[tuple[int, tuple[str, ...], signal.Signals, float]], reference: Reference, tmp_path: Path
) -> None:
    strike = Strikes(tmp_path / "struck", *strikes)
    run = train(
        "steady",
        tmp_path / "run",
        workers=3,
        plan="sync=server,servers=2",
        listen=strike,
        **strike.settings,
        **SETTINGS,
    )
    strike.assert_done()
    lost = [event for event in run.of("server") if event["what"] == "lost"]
    assert len(lost) + len(run.of("failure")) == run.result["failures"] >= 1
    assert_same(run, reference("steady", **SETTINGS))


def test_without_a_backup_the_log_is_enough(reference: Reference, tmp_path: Path) -> None:
    strike = Strikes(
        tmp_path / "struck", (5, ("first 0",), signal.SIGKILL, 0.0), (20, ("first 0",), signal.SIGKILL, 0.002)
    )
    plan = "sync=server,backups=false"
    run = train("steady", tmp_path / "run", workers=2, plan=plan, listen=strike, **strike.settings, **SETTINGS)
    strike.assert_done()
    assert_same(run, reference("steady", **SETTINGS))
    assert not list((tmp_path / "run" / "servers").iterdir()), "a log of a run that is over"


def test_without_a_log_the_loss_of_both_ends_the_run(reference: Reference, tmp_path: Path) -> None:
    """It continues from its last checkpoint."""
    strike, out = Strikes(tmp_path / "struck", (8, ("first 0", "backup 0"), signal.SIGKILL, 0.0)), tmp_path / "run"
    with pytest.raises(WorkersLost, match="no parameter server is left for shard 0") as raised:
        train(
            "steady",
            out,
            workers=2,
            plan="sync=server,persist=false",
            listen=strike,
            save_steps=5,
            **strike.settings,
            **SETTINGS,
        )
    assert "--resume" in raised.value.next_step
    run = train("steady", out, workers=3, resume=True, **SETTINGS)
    assert distance(run, reference("steady", **SETTINGS)) <= 1e-9


FATES = ["0:start:0", "1:backward:10", "0:forward:10", "2:after:10:SIGSTOP", "0:validation:15", "1:end:30"]
MORE = ["2:forward:0", "0:backward:10:SIGSTOP", "1:backward:20", "1:validation:15", "0:after:30", "0:test:30"]
"""After steps at which a window ends: a worker does not know of others."""


@pytest.mark.thinned(3)
@pytest.mark.parametrize("fate", [*FATES, *(pytest.param(one, marks=pytest.mark.slow) for one in MORE)])
@pytest.mark.parametrize(
    "plan",
    [
        "sync=local,local_steps=4",
        "sync=server,mode=stale,staleness=1",
        "sync=server,push=parameters,local_steps=4",
        "sync=server,servers=2",
    ],
)
def test_a_worker_ends_at_every_place(plan: str, fate: str, reference: Reference, tmp_path: Path) -> None:
    run = train("steady", tmp_path / "run", workers=3, fate=fate, save_steps=5, plan=plan)
    alone = reference("steady", save_steps=5)
    assert run.result["failures"] == 1
    if plan.endswith("servers=2"):
        assert_same(run, alone)
    assert run.result["order_sha256"] == alone.result["order_sha256"]
    assert (run.result["samples_lost"], run.result["samples_repeated"]) == (0, 0)


WITHIN = [("1:push:14", "none"), ("1:push:15", "int8"), ("1:close:8", "none")]
MORE_WITHIN = [("1:push:13", "none"), ("1:push:16", "none"), ("1:close:7", "none"), ("1:close:8", "int8")]


@pytest.mark.parametrize(
    ("dies", "compress"), [*WITHIN, *(pytest.param(*one, marks=pytest.mark.slow) for one in MORE_WITHIN)]
)
def test_a_worker_dies_within_a_push(dies: str, compress: str, reference: Reference, tmp_path: Path) -> None:
    """Half of the bytes of a piece came, or all pieces and half of the message that closes them."""
    plan = f"sync=server,servers=2,compress={compress}"
    run = train("pushing", tmp_path / "run", workers=3, plan=plan, dies=dies)
    alone = reference("pushing")
    assert [event["worker"] for event in run.of("failure")] == [1]
    if compress == "none":
        assert_same(run, alone)
    assert run.result["order_sha256"] == alone.result["order_sha256"]
    assert (run.result["samples_lost"], run.result["samples_repeated"]) == (0, 0)


@pytest.mark.parametrize("dies", ["1:push:15", "1:update:8"])
def test_a_worker_dies_within_a_push_that_is_applied_by_itself(dies: str, reference: Reference, tmp_path: Path) -> None:
    """One server may have applied it: another worker pushes the same part, and it is applied where it was not."""
    run = train("pushing", tmp_path / "run", workers=3, plan="sync=server,servers=2,mode=async", dies=dies)
    assert [event["worker"] for event in run.of("failure")] == [1]
    assert run.result["order_sha256"] == reference("pushing").result["order_sha256"]
    assert (run.result["samples_lost"], run.result["samples_repeated"]) == (0, 0)
    items = [(step, part) for window in run.of("window") for _, step, part in window["items"]]
    assert len(items) == len(set(items))
    assert max(event["version"] for event in run.of("pushes")) == len(items)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_many_instants(seed: int, reference: Reference, tmp_path: Path) -> None:
    """Five times in each of forty runs: a first holder, a backup, one of each, both of a shard, one and a worker."""
    strike = Strikes.drawn(tmp_path / "struck", seed)
    run = train(
        "steady",
        tmp_path / "run",
        workers=3,
        plan="sync=server,servers=2",
        listen=strike,
        **strike.settings,
        **SETTINGS,
    )
    assert_same(run, reference("steady", **SETTINGS))
