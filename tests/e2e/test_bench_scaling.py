"""`cordee bench scaling` as users type it: real runs, figures that agree with each other, and what it refuses."""

from __future__ import annotations

import json
import math
import signal
import statistics
from pathlib import Path
from typing import Any

import pytest

from cordee.core import errors
from cordee.core.machine import usable_cores
from harness import DEADLINE_S, command, start, until

pytestmark = pytest.mark.usefixtures("warm")

DIGITS = Path(__file__).parents[2] / "examples" / "digits.py"
SHORT = ("--steps", "6", "--warm-up", "2")

JOB = """
import torch
from torch import nn
import cordee

print("the job speaks")

class Fails(cordee.Callback):
    def on_step(self, session, step):
        if step.number + 1 == {fail} and session.size == 2:
            raise RuntimeError("as told")

    def on_end(self, session):
        open({mark!r}, "w").close()

job = cordee.Job(
    model=lambda: nn.Linear(64, 10),
    loss=nn.functional.cross_entropy,
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    data=cordee.data.digits(),
    batch=300,
    schedule=lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=5),
    callbacks=[Fails()],
)
"""


def write_job(folder: Path, *, fail: int = 0) -> Path:
    path = folder / "job.py"
    path.write_text(JOB.format(fail=fail, mark=str(folder / "ended")))
    return path


def assert_consistent(values: dict[str, Any], counts: list[int], *, rounds: int, steps: int) -> None:
    """The figures follow from the step times that stand beside them."""
    assert [one["workers"] for one in values["counts"]] == counts
    assert len(values["runs"]) == rounds * len(counts)
    first = values["counts"][0]
    for one in values["counts"]:
        mine = [run for run in values["runs"] if run["workers"] == one["workers"]]
        assert [run["round"] for run in mine] == list(range(1, rounds + 1))
        assert {len(run["step_ms"]) for run in mine} == {steps}
        assert {samples for run in mine for samples in run["samples"]} == {one["batch"]}
        medians = [statistics.median(run["step_ms"]) for run in mine]
        rates = [1e3 * sum(run["samples"]) / sum(run["step_ms"]) for run in mine]
        assert one["step_ms"]["p50"] == pytest.approx(statistics.geometric_mean(medians), rel=1e-5)
        assert one["throughput"] == pytest.approx(statistics.geometric_mean(rates), rel=1e-5)
        assert one["step_ms"]["p95"] >= one["step_ms"]["p50"]
        if values["scaling"] == "strong":
            assert one["speed_up"] == pytest.approx(first["step_ms"]["p50"] / one["step_ms"]["p50"], rel=1e-5)
            assert one["batch"] == first["batch"]
        else:
            assert one["speed_up"] == pytest.approx(one["throughput"] / first["throughput"], rel=1e-5)
            assert one["batch"] == first["batch"] // first["workers"] * one["workers"]
        assert one["efficiency"] == pytest.approx(one["speed_up"] * first["workers"] / one["workers"], rel=1e-5)
        assert (one["step_ms"]["p50_95"] is None) == (rounds < 3)
        if one is not first and rounds >= 3:
            low, high = one["speed_up_95"]
            assert low <= one["speed_up"] <= high and math.isfinite(high)
    assert [run["workers"] for run in values["runs"]][: 2 * len(counts)] == counts + (
        counts[::-1] if rounds > 1 else []
    )
    crowded = [count for count in counts if count * values["threads_per_worker"] > values["cores"]]
    assert values["oversubscribed"] == crowded and (values["warning"] is None) == (not crowded)


def test_strong_scaling(tmp_path: Path) -> None:
    out = tmp_path / "scaling"
    ended = command("bench", "scaling", DIGITS, "--workers", "1,2", "--rounds", "3", *SHORT, "--out", out, "--json")
    assert ended.returncode == 0, ended.stderr
    values = json.loads(ended.stdout)
    assert values == json.loads((out / "scaling.json").read_text())
    assert values["scaling"] == "strong" and values["counts"][0]["batch"] == 250
    assert_consistent(values, [1, 2], rounds=3, steps=6)
    for number in range(1, 7):
        assert f"run {number} of 6" in ended.stderr
    assert sorted(path.name for path in out.iterdir()) == ["scaling.html", "scaling.json"]
    assert f"{values['counts'][1]['speed_up']:.2f}" in (out / "scaling.html").read_text()


def test_weak_scaling_where_batches_outgrow_the_data(tmp_path: Path) -> None:
    more = ("--rounds", "1", "--weak", "--set", "batch=1000", "--threads", str(len(usable_cores()) + 1))
    ended = command(
        "bench", "scaling", DIGITS, "--workers", "1,2", *SHORT, *more, "--out", tmp_path / "out", "--keep", "--json"
    )
    assert ended.returncode == 0, ended.stderr
    values = json.loads(ended.stdout)
    assert_consistent(values, [1, 2], rounds=1, steps=6)
    assert [one["batch"] for one in values["counts"]] == [1000, 2000]
    assert values["oversubscribed"] == [1, 2] and values["warning"] in ended.stderr
    kept = [tmp_path / "out" / "runs" / f"round-1-workers-{count}" for count in (1, 2)]
    for folder in kept:  # nothing was evaluated, saved or exported
        assert sorted(path.name for path in folder.iterdir()) == ["events.jsonl", "run.json"]
        assert not any('"event":"epoch"' in line for line in (folder / "events.jsonl").read_text().splitlines())


def test_a_job_with_little_data_a_short_schedule_and_words_of_its_own(tmp_path: Path) -> None:
    arguments = (write_job(tmp_path), "--workers", "2", "--rounds", "1", *SHORT)
    ended = command("bench", "scaling", *arguments, "--json", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    values = json.loads(ended.stdout)  # and nothing else is there
    assert "the job speaks" in ended.stderr
    assert values["counts"][0]["speed_up"] is None and values["counts"][0]["throughput"] > 0
    assert not (tmp_path / "ended").exists()  # a trial is no training that its callbacks should conclude
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("scaling-job-")
    shown = command("bench", "scaling", *arguments, "--out", tmp_path / "second")
    assert "there is no speed-up" in shown.stdout and "samples/s" in shown.stdout
    assert "the job speaks" not in shown.stdout


def test_a_run_that_fails_is_named_and_kept(tmp_path: Path) -> None:
    job = write_job(tmp_path, fail=4)
    ended = command("bench", "scaling", job, "--workers", "1,2", *SHORT, "--out", tmp_path / "out", "--json")
    assert ended.returncode == errors.WorkerFailed.code and ended.stdout == ""
    assert "run 2 of 6 (round 1, --workers 2)" in ended.stderr and "as told" in ended.stderr
    kept = tmp_path / "out" / "runs" / "round-1-workers-2"
    assert str(kept) in ended.stderr and (kept / "events.jsonl").exists()
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]
    assert not (tmp_path / "out" / "scaling.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--workers", "1,1"), "twice"),
        (("--workers", "0,1"), "at least 1"),
        (("--workers", "two"), "1,2,4"),
        (("--rounds", "0"), "--rounds 0"),
        (("--warm-up", "0"), "--warm-up 0"),
        (("--set", "batch"), "name=value"),
        (("--threads", "0"), "--threads 0"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    ended = command("bench", "scaling", DIGITS, *arguments, "--out", tmp_path / "out")
    assert ended.returncode == errors.UsageError.code
    assert words in ended.stderr and "Traceback" not in ended.stderr
    assert not (tmp_path / "out").exists()


def test_no_file(tmp_path: Path) -> None:
    ended = command("bench", "scaling", tmp_path / "nothing.py")
    assert ended.returncode == errors.JobError.code and "nothing.py" in ended.stderr


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    process = start("bench", "scaling", DIGITS, "--workers", "1,2", "--steps", "100000", "--out", tmp_path / "out")
    try:
        events = tmp_path / "out" / "runs" / "round-1-workers-1" / "events.jsonl"
        until(lambda: process.poll() is not None or (events.exists() and '"step"' in events.read_text()))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == errors.Interrupted.code
    assert "run 1 of 6" in said and "nothing was written" in said and "Traceback" not in said
    assert not (tmp_path / "out").exists()
