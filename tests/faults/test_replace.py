"""A worker that is lost is replaced: another one joins between two steps, with the state of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from alone import python
from cordee.core.errors import UsageError, WorkersLost
from cordee.core.events import Event, FailureEvent
from harness import DEADLINE_S, Run, assert_same, command, free_port, job_file, start, train

NOTEBOOK = """
import os, signal, time, torch
import cordee
from cordee.train.session import stepper_of

class Fate(cordee.Callback):
    def on_step(self, session, done):
        team = stepper_of(session).team
        if (team.membership.worker, done.steps) == (1, 3):
            os.kill(os.getpid(), signal.SIGKILL)
        while done.steps == 6 and not (team.channel.newcomers or team.membership.size == 2):
            time.sleep(0.002)

job = cordee.Job(
    model=lambda: torch.nn.Linear(64, 10),
    loss=torch.nn.functional.cross_entropy,
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    data=cordee.data.digits(),
    batch=50,
    stop=cordee.Stop(steps=12),
    callbacks=[Fate()],
)
cordee.train(job, workers=2, plan="replace=true", out="run", threads=1, progress=False)
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same job in one process, undisturbed."""
    folder = tmp_path_factory.mktemp("alone")
    return train("replaced", folder / "run", starts=folder / "starts")


def replaced(folder: Path, *, workers: int, plan: str = "replace=true", **settings: Any) -> Run:
    run = train("replaced", folder / "run", workers=workers, plan=plan, starts=folder / "starts", **settings)
    assert (run.result["samples_lost"], run.result["samples_repeated"]) == (0, 0)
    assert run.result["failures"] == len(run.of("failure"))
    return run


def joined(run: Run) -> list[tuple[int, int]]:
    return [(event["worker"], event["replaces"]) for event in run.of("joined")]


def last_workers(run: Run) -> list[int]:
    found: list[int] = run.of("regroup")[-1]["workers"]
    return found


@pytest.mark.thinned(3)
@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSTOP"])
@pytest.mark.parametrize(("workers", "victim"), [(2, 1), (2, 0), (3, 1), (3, 0)])
def test_the_run_is_as_undisturbed(alone: Run, tmp_path: Path, workers: int, victim: int, signal: str) -> None:
    run = replaced(tmp_path, workers=workers, fates=f"{victim}:6:{signal}", waits="9")
    assert joined(run) == [(workers, victim)]
    assert last_workers(run) == sorted({*range(workers + 1)} - {victim})
    assert run.result["failures"] == 1
    assert_same(run, alone)


def test_one_that_replaced_another_is_replaced_too(alone: Run, tmp_path: Path) -> None:
    run = replaced(tmp_path, workers=3, fates="1:4:SIGKILL 3:12:SIGKILL", waits="6 15")
    assert joined(run) == [(3, 1), (4, 3)]
    assert last_workers(run) == [0, 2, 4]
    assert_same(run, alone)


def test_one_is_lost_in_its_first_step(alone: Run, tmp_path: Path) -> None:
    run = replaced(tmp_path, workers=2, fates="1:4:SIGKILL 2:8:SIGKILL", waits="6 11")
    assert joined(run) == [(2, 1), (3, 2)]
    assert_same(run, alone)


def test_two_are_lost_at_once_and_with_them_the_one_that_spoke(alone: Run, tmp_path: Path) -> None:
    run = replaced(tmp_path, workers=3, fates="0:5:SIGKILL 2:5:SIGKILL", waits="8 12 16 20")
    assert sorted(place for _, place in joined(run)) == [0, 2]
    assert last_workers(run) == [1, 3, 4]
    assert_same(run, alone)


def test_those_that_stay_are_lost_later_and_the_newcomer_goes_on(alone: Run, tmp_path: Path) -> None:
    run = replaced(tmp_path, workers=2, fates="1:4:SIGKILL 0:17:SIGKILL", waits="6 20")
    assert joined(run) == [(2, 1), (3, 0)]
    assert last_workers(run) == [2, 3]
    assert_same(run, alone)


def test_the_one_that_gives_its_state_is_lost_meanwhile(alone: Run, tmp_path: Path) -> None:
    run = replaced(tmp_path, workers=3, fates="1:4:SIGKILL", waits="6 12", giver=0)
    assert joined(run) == [(3, 1), (4, 0)] and last_workers(run) == [2, 3, 4]
    assert_same(run, alone)


def test_one_is_lost_as_soon_as_it_is_let_in(alone: Run, tmp_path: Path) -> None:
    run = replaced(tmp_path, workers=3, fates="1:4:SIGKILL", waits="6 12", newcomer=3)
    assert joined(run) == [(3, 1), (4, 3)] and last_workers(run) == [0, 2, 4]
    assert run.result["failures"] == 2
    assert_same(run, alone)


def test_all_that_have_the_state_are_lost_meanwhile(tmp_path: Path) -> None:
    with pytest.raises(WorkersLost, match="no worker is left"):
        replaced(tmp_path, workers=2, fates="1:4:SIGKILL", waits="6", giver=0)


def test_one_is_lost_while_it_starts(alone: Run, tmp_path: Path) -> None:
    run = replaced(tmp_path, workers=2, fates="1:4:SIGKILL", waits="8", dying="3")
    assert joined(run) == [(3, 2)]
    assert run.result["failures"] == 1  # it was not a member yet
    assert any("worker 2 was to take the place of worker 1" in event["message"] for event in run.of("warning"))
    assert_same(run, alone)


def test_a_place_where_workers_are_lost_again_and_again_stays_empty(alone: Run, tmp_path: Path) -> None:
    run = replaced(tmp_path, workers=2, fates="1:4:SIGKILL", dying="3 4 5 6 7 8", many=5)
    assert joined(run) == [] and last_workers(run) == [0]
    assert len((tmp_path / "starts").read_text()) == 5  # two at the start, and three tries
    assert any("stays empty" in event["message"] for event in run.of("warning"))
    assert_same(run, alone)


@pytest.mark.parametrize("merge", ["wait", "behind"])
def test_local_steps_are_merged_before_one_comes_in(merge: str, alone: Run, tmp_path: Path) -> None:
    plan = f"replace=true,sync=local,local_steps=4,merge={merge}"
    run = train(
        "replaced", tmp_path / "run", workers=2, plan=plan, starts=tmp_path / "starts", fates="1:8:SIGKILL", waits="10"
    )
    assert joined(run) == [(2, 1)] and len(run.losses) == len(alone.losses)
    assert (run.result["samples_lost"], run.result["samples_repeated"]) == (0, 0)  # after a merge nothing is lost
    assert run.losses[-1] < run.losses[0] / 2


def test_a_job_that_was_sent_is_there_for_newcomers_too(tmp_path: Path) -> None:
    """As from a notebook: the job has no file."""
    script = tmp_path / "notebook.py"
    script.write_text(NOTEBOOK)
    python(script, cwd=tmp_path)
    run = Run(tmp_path / "run")
    assert joined(run) == [(2, 1)] and len(run.losses) == 12
    assert (run.result["samples_lost"], run.result["samples_repeated"]) == (0, 0)


def test_every_host_replaces_its_own_workers(alone: Run, tmp_path: Path) -> None:
    """Two launchers meet, and a worker of the one that follows is lost."""
    meeting = ("--rendezvous", f"127.0.0.1:{free_port()}", "--nodes", "2")
    settings = ("--set", f"starts={tmp_path / 'starts'}", "--set", "fates=3:6:SIGKILL", "--set", "waits=9")
    asked = ("train", job_file("replaced"), *settings, "--replace", "--workers", "2", "--threads", "1", *meeting)
    hosts = [start(*asked, "--out", tmp_path / name, cwd=tmp_path) for name in ("one", "two")]
    said = [host.communicate(timeout=DEADLINE_S) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], said
    coordinator = next(tmp_path / name for name in ("one", "two") if (tmp_path / name / "result.json").exists())
    run = Run(coordinator)
    assert joined(run) == [(4, 3)] and last_workers(run) == [0, 1, 2, 4]
    assert_same(run, alone)


def test_a_newcomer_whose_job_was_changed_meanwhile_leaves_again(alone: Run, tmp_path: Path) -> None:
    """A newcomer reads the job's file anew."""
    file = tmp_path / "edited.py"
    text = job_file("replaced").read_text()
    file.write_text(text)

    def edit(event: Event) -> None:
        if isinstance(event, FailureEvent):
            other = tmp_path / "other.py"  # no newcomer finds half of it
            other.write_text(text.replace("batch=101", "batch=99"))
            other.replace(file)

    settings = {"starts": tmp_path / "starts", "fates": "1:4:SIGKILL", "waits": "6 9 12"}
    run = train(file, tmp_path / "run", workers=2, plan="replace=true", listen=edit, **settings)
    assert joined(run) == [(2, 1), (3, 2), (4, 3)] and last_workers(run) == [0]
    reasons = [event["reason"] for event in run.of("failure")[1:]]
    assert reasons == ["the job has changed since the run began: batch 101 then, batch 99 now"] * 3
    assert_same(run, alone)


def test_scripts_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import cordee\nwith cordee.session(plan='replace=true') as s:\n    pass\n")
    done = command("run", script, "--plan", "replace=true", cwd=tmp_path)
    assert done.returncode == UsageError.code and "is for jobs" in done.stderr
    done = command("run", script, "--workers", "1", cwd=tmp_path)
    assert done.returncode == UsageError.code and "is for jobs" in done.stderr


def test_the_option_is_the_key_of_the_plan(tmp_path: Path) -> None:
    job = job_file("replaced")
    settings = ("--set", f"starts={tmp_path / 'starts'}", "--set", "fates=1:4:SIGKILL", "--set", "waits=6")
    done = command("train", job, *settings, "--replace", "--workers", "2", "--out", tmp_path / "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = Run(tmp_path / "run")
    assert joined(run) == [(2, 1)] and run.result["plan"] == "replace=true"
    assert "worker 2" in done.stderr + done.stdout


def test_without_replace_the_others_go_on_alone(alone: Run, tmp_path: Path) -> None:
    run = replaced(tmp_path, workers=2, plan="auto", fates="1:4:SIGKILL")
    assert joined(run) == [] and len((tmp_path / "starts").read_text()) == 2
    assert_same(run, alone)
