"""A worker is lost, and no whole replica is left: the run continues by itself from the newest state, exactly."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cordee.core.errors import JobError, UsageError, WorkersLost
from cordee.core.events import Event
from cordee.runtime.keeping import MEMORY, PREFIX
from harness import Run, assert_audited, distance, run_script, train

SLOW = pytest.mark.slow


@pytest.fixture
def once(tmp_path: Path) -> Path:
    """The file that lets the worker be killed."""
    (file := tmp_path / "once").touch()
    return file


def in_memory() -> set[str]:
    """What this process, which launches the runs, holds in the memory of this host."""
    return {one.name for one in MEMORY.glob(f"*{PREFIX}{os.getpid()}-*")}


def assert_exact(run: Run, alone: Run) -> None:
    """What one process has trained; of a step that was computed again the last loss counts."""
    assert_audited(run)
    losses = {event["step"]: event["loss"] for event in run.of("step")}
    assert sorted(losses) == list(range(1, 21))
    assert [losses[step] for step in sorted(losses)] == pytest.approx(alone.losses, rel=1e-10)
    assert distance(run, alone) < 1e-9
    for name in ("steps", "samples", "order_sha256"):
        assert run.result[name] == alone.result[name], name
    assert (run.result["samples_lost"], run.result["samples_repeated"]) == (0, 0)


@pytest.mark.parametrize(
    ("plan", "workers", "who", "save", "then"),
    [
        # The save of step 8 may be cut off.
        ("pipeline=2,recover=fewer", 2, 1, 4, (1, "recover=fewer", "disk", {7, 8})),
        ("tensor=2,recover=full,copy_every=3", 2, 1, 8, (2, "tensor=2,recover=full,copy_every=3", "memory", {9})),
        pytest.param(
            "shard=params,recover=fewer,copy_every=5",
            3,
            0,
            0,
            (2, "shard=params,recover=fewer,copy_every=5", "memory", {10}),
            marks=SLOW,
        ),
        pytest.param("pipeline=2,recover=full,copy_every=7", 2, 0, 5, (2, "", "disk", {7, 10}), marks=SLOW),
        pytest.param("recover=full,copy_every=1", 1, 0, 0, (1, "", "memory", {10, 11}), marks=SLOW),
        pytest.param("sync=local,local_steps=4,recover=full,copy_every=3", 1, 0, 0, (1, "", "memory", {9}), marks=SLOW),
    ],
)
def test_a_run_continues_and_comes_to_what_one_process_does(
    reference: Callable[..., Run],
    once: Path,
    tmp_path: Path,
    plan: str,
    workers: int,
    who: int,
    save: int,
    then: tuple[int, str, str, set[int]],
) -> None:
    run = train("part_lost", tmp_path / "run", workers=workers, plan=plan, file=once, who=who, save=save)
    assert_exact(run, reference("part_lost"))
    (told,) = run.of("continued")
    left, asked, source, steps = then
    assert (told["workers"], told["plan"], told["source"]) == (left, asked or plan, source)
    recorded = [one["step"] for one in run.events[: run.events.index(told)] if one["event"] == "step"]
    assert told["step"] in steps and told["repeats"] == max(0, max(recorded) - told["step"])
    assert [one["resume"] for one in run.of("start")] == [False, True]
    assert not in_memory()


def test_a_run_that_is_lost_at_the_same_step_again_ends(once: Path, tmp_path: Path) -> None:
    """What was in memory alone is on disk then. The last step before the first loss may be too late for the record."""
    with pytest.raises(WorkersLost, match=r"to go on after step 10: .*--resume"):
        train("part_lost", tmp_path / "run", workers=2, plan="tensor=2,recover=full,copy_every=5", file=once,
              save=0, always=True)  # fmt: skip
    run = Run(tmp_path / "run")
    assert len(run.of("continued")) in (1, 2)
    said = [one["message"] for one in run.of("warning")]
    assert any("no step was done beyond step 11" in one for one in said), said
    assert any("the state of step 10 was in memory; it is a checkpoint now" in one for one in said), said
    assert not in_memory()


@SLOW
def test_a_start_that_fails_says_what_it_was_to_continue(once: Path, tmp_path: Path) -> None:
    """The file of the job is broken meanwhile."""
    job = tmp_path / "job.py"
    jobs = str(Path(__file__).parents[1] / "jobs")
    job.write_text(f"import sys\nsys.path.insert(0, {jobs!r})\nfrom part_lost import job\n")

    def listen(event: Event) -> None:
        if event.kind == "failure":
            job.write_text("job = 3")

    with pytest.raises(WorkersLost, match=r"without which.*Continuing by itself failed: .*to go on after step"):
        train(job, tmp_path / "run", workers=2, plan="tensor=2,recover=full", file=once, listen=listen)


@SLOW
def test_an_error_of_the_user_is_no_loss(once: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text("raise ValueError('mine')")
    with pytest.raises(JobError, match="mine"):
        train(job, tmp_path / "run", plan="recover=full")
    assert not [one for one in (tmp_path / "run").glob("events.jsonl") if "continued" in one.read_text()]


def test_a_script_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text("")
    with pytest.raises(UsageError, match="recover=fewer is for jobs"):
        run_script(tmp_path / "loop.py", tmp_path / "run", plan="recover=fewer")
