"""`sync=server,push=parameters`: servers and workers die within a merge; each merge counts once, as the record says."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from cordee.core.events import Event, ServerEvent
from harness import Run, assert_same, train
from replay import assert_audited, assert_replayed
from strike import Strikes

Reference = Callable[..., Run]
PUSH = "sync=server,push=parameters,servers=2,local_steps=3"
OUTER = {"outer_lr": 0.7, "outer_momentum": 0.9}


class Numbers:
    """Listens to a run, and writes down the process numbers of these servers, such as `first 0`."""

    def __init__(self, folder: Path, victims: tuple[str, ...]) -> None:
        self.folder, self.victims = folder, victims
        folder.mkdir()

    def __call__(self, event: Event) -> None:
        if not isinstance(event, ServerEvent):
            return
        file = self.folder / f"{event.what} {event.shard}"
        if file.name in self.victims and not file.exists():  # not the one that takes its place
            file.write_text(str(event.pid))


KILLS = ["0:push:13", "1:close:5", "1:close:6", "2:apply:5", "0:apply:6"]
VICTIMS = [("first 0",), ("backup 1",), ("first 0", "backup 0"), ("first 0", "first 1", "backup 0", "backup 1")]


@pytest.mark.thinned(5)
@pytest.mark.parametrize("victims", VICTIMS, ids=["first", "backup", "both", "all"])
@pytest.mark.parametrize("kills", KILLS)
def test_servers_die_within_a_merge(kills: str, victims: tuple[str, ...], reference: Reference, tmp_path: Path) -> None:
    """In the third merge: while ways are pushed, when a worker has closed them, and when it asks for the update."""
    numbers = Numbers(tmp_path / "pids", victims)
    plan = f"{PUSH},outer=nesterov"
    run = train("pushing", tmp_path / "run", workers=3, plan=plan, listen=numbers, kills=kills, pids=tmp_path / "pids")
    assert run.result["failures"] == len(victims)
    assert_audited(run, reference("pushing"))
    assert_replayed(run, "pushing", **OUTER)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("dies", ["1:push:11", "1:push:14", "1:close:5", "1:close:6", "1:apply:5", "1:apply:6"])
def test_a_worker_dies_within_a_merge(dies: str, outer: bool, reference: Reference, tmp_path: Path) -> None:
    """What it had computed since the last merge is done again, unless all servers had all of it."""
    plan = PUSH + ",outer=nesterov" * outer
    run = train("pushing", tmp_path / "run", workers=3, plan=plan, dies=dies)
    assert [event["worker"] for event in run.of("failure")] == [1]
    merges = sum(any(item[0] == 1 for item in window["items"]) for window in run.of("window"))
    assert merges == (3 if "apply" in dies else 2)
    assert_audited(run, reference("pushing"))
    assert_replayed(run, "pushing", **(OUTER if outer else {}))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("dies", ["1:apply:5", "1:apply:6"])
def test_the_only_worker_that_knows_of_a_merge_dies(
    workers: int, dies: str, reference: Reference, tmp_path: Path
) -> None:
    """One server has applied it, or both: the others ask them, and it counts."""
    run = train("pushing", tmp_path / "run", workers=workers, plan=f"{PUSH},outer=nesterov", dies=dies, behind=3)
    assert [event["worker"] for event in run.of("failure")] == [1]
    assert sum(any(item[0] == 1 for item in window["items"]) for window in run.of("window")) == 3
    assert_audited(run, reference("pushing"))
    if workers == 3:  # the record has no windows of one worker alone, which merges as it goes
        assert_replayed(run, "pushing", **OUTER)


@pytest.mark.parametrize("workers", [2, 3])
def test_the_only_worker_that_knows_of_a_gradient_dies(workers: int, reference: Reference, tmp_path: Path) -> None:
    """One server has applied it: the others compute that step again, and the other server applies it too."""
    plan = "sync=server,servers=2"
    run = train("pushing", tmp_path / "run", workers=workers, plan=plan, dies="1:apply:6", behind=3)
    assert [event["worker"] for event in run.of("failure")] == [1]
    assert_same(run, reference("pushing"))


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "strikes",
    [
        [(6, ("first 0",), signal.SIGKILL, 0.0), (30, ("first 1",), signal.SIGKILL, 0.002)],
        [(6, ("first 0", "backup 1"), signal.SIGKILL, 0.001), (30, ("first 0", "backup 0"), signal.SIGKILL, 0.0)],
        [(6, ("first 1",), signal.SIGSTOP, 0.0)],
        [(6, ("first 1", "worker 1"), signal.SIGKILL, 0.003)],
    ],
    ids=["firsts", "pairs", "stopped", "server and worker"],
)
def test_servers_are_lost_at_any_time(
    strikes: list[tuple[int, tuple[str, ...], signal.Signals, float]], reference: Reference, tmp_path: Path
) -> None:
    strike, settings = Strikes(tmp_path / "struck", *strikes), {"epochs": 4, "batchnorm": False}
    run = train("steady", tmp_path / "run", workers=3, plan=PUSH, listen=strike, **strike.settings, **settings)
    strike.assert_done()
    assert run.result["failures"] >= 1
    assert_audited(run, reference("steady", **settings))
    assert_replayed(run, "steady", **settings)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_many_instants(seed: int, reference: Reference, tmp_path: Path) -> None:
    strike, settings = Strikes.drawn(tmp_path / "struck", seed), {"epochs": 4, "batchnorm": False}
    plan = f"{PUSH},outer=nesterov"
    run = train("steady", tmp_path / "run", workers=3, plan=plan, listen=strike, **strike.settings, **settings)
    assert_audited(run, reference("steady", **settings))
    assert_replayed(run, "steady", **settings, **OUTER)
