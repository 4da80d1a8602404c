"""What the recorder makes of what the hub says."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from cordee.core.events import JobEvent, StepEvent, WorkerEvent
from cordee.core.plan import Plan
from cordee.group.messages import Go
from cordee.runtime import recorder as module
from cordee.runtime.launch import Launch
from cordee.runtime.notices import Formed, Lost
from cordee.runtime.recorder import Recorder
from cordee.runtime.spec import Target
from records import read


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of this host."""
    monkeypatch.setattr(module.socket, "gethostname", lambda: "a")
    return "a"


def recorded(folder: Path, notices: list[tuple[int, Any]], *, script: bool = False) -> list[Any]:
    """The events of a run of which the hub says this."""
    launch = Launch(Target("script" if script else "job", "job.py"), 3, Plan(), folder)
    made = Recorder(launch, lambda event: None)
    made.begin(3)
    for notice in notices:
        made.notice(*notice)
    made.close()
    return read(folder)


def came(worker: int, host: str) -> tuple[int, Any]:
    return worker, WorkerEvent(worker, host, 1, "cpu", 1)


def lost(worker: int, host: str, at: float = 0.0) -> tuple[int, Any]:
    return worker, Lost(host, "killed", 2, at)


def go(generation: int, *members: int, at: float = 0.0) -> tuple[int, Any]:
    return -1, Formed(Go(generation, members, 1, None), at)


def test_a_loss_says_when_it_was_seen_and_a_group_when_it_went_on(tmp_path: Path) -> None:
    """The launcher waits for the exit status before it writes."""
    now = time.time()
    events = recorded(tmp_path, [go(1, 0, 1, 2), lost(1, "a", now - 900.0), go(2, 0, 2, at=now - 750.0)])
    failure, regroup = events[-2:]
    assert failure["time"] >= now - 1.0 and failure["at"] == pytest.approx(now - 900.0, abs=1e-3)
    assert regroup["at"] == pytest.approx(now - 750.0, abs=1e-3) and regroup["ms"] == 150_000.0


def test_what_workers_say_again_to_the_launcher_that_takes_over_is_recorded_once(tmp_path: Path) -> None:
    """It writes on in the folder that both see, and knows of the loss only what it finds there."""
    steps = [(1, StepEvent(number, 0, 1.0, 4, 1.0)) for number in (1, 2, 3)]
    said = [(1, JobEvent("job", 4, 1, 9, 0, 1, {}, last_step=9)), *steps[:2], lost(0, "a")]
    recorded(tmp_path, said)
    later = Recorder(Launch(Target("job", "job.py"), 1, Plan(), tmp_path), lambda event: None, takes_over=True)
    for notice in (*said, steps[2]):
        later.notice(*notice)
    later.close()
    assert [one["step"] for one in read(tmp_path) if one["event"] == "step"] == [1, 2, 3]
    assert [one["event"] for one in read(tmp_path)].count("failure") == later.failures == 1


@pytest.mark.parametrize("script", [False, True])
def test_the_files_come_to_another_host(script: bool, host: str, tmp_path: Path) -> None:
    notices = [go(1, 0, 1, 2, 3), came(0, host), came(1, host), came(2, "b"), came(3, "c")]
    notices += [lost(0, host), go(2, 1, 2, 3), lost(3, "c"), go(3, 1, 2)]  # still on this host
    assert not [one for one in recorded(tmp_path / "here", notices, script=script) if one["event"] == "warning"]
    notices += [lost(1, host), go(4, 2), go(5, 2)]
    events = recorded(tmp_path / "there", notices, script=script)
    (warning,) = (one["message"] for one in events if one["event"] == "warning")
    assert [one["event"] for one in events[-3:]] == ["regroup", "warning", "regroup"]
    assert warning == (
        "worker 2 on b has rank 0 from now on: what the script saves as rank 0 is there, on b"
        if script
        else "worker 2 on b writes checkpoints and the trained model from now on: "
        "there, in the folder that --out names on b"
    )


def test_the_first_worker_was_lost_before_the_others_introduced_themselves(host: str, tmp_path: Path) -> None:
    events = recorded(tmp_path, [lost(0, host), go(1, 1, 2), came(1, "b"), came(2, "b")])
    assert [one["event"] for one in events] == ["start", "failure", "worker", "warning", "worker"]
