"""The report of real runs: written at their end whatever that was, and by `cordee report` at any time."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import cordee
from cordee.core import errors
from cordee.watch.report import write_report
from cordee.watch.summarise import summarise
from harness import DEADLINE_S, Run, command, job_file, start
from records import HOSTILE, events_until, hostile_run, long_run, write
from records import start as begun

pytestmark = pytest.mark.usefixtures("warm")


def train(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return command("train", job_file("steady"), "--threads", "1", "--out", out, *options)


def page(out: Path) -> str:
    return (out / "report.html").read_text(encoding="utf-8")


def data(out: Path) -> dict[str, Any]:
    """What the page draws."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page(out), re.S)
    assert found is not None
    read: dict[str, Any] = json.loads(found[1])
    return read


def visible(out: Path) -> str:
    """The text of the page, without scripts, styles and tags."""
    text = re.sub(r"<(script|style)\b.*?</\1>|<!--.*?-->", "", page(out), flags=re.S)
    return re.sub(r"<[^>]*>", " ", text)


def test_a_killed_worker_is_in_the_report(killed: Path) -> None:
    summary = summarise(killed)
    (failure,) = (one for one in summary.incidents if one.kind == "failure")
    assert failure.worker == 1 and 20 <= failure.step < 150 and "SIGKILL" in failure.text
    assert summary.workers[1].lost and not summary.workers[0].lost
    text = visible(killed)
    assert "completed" in text and "was lost: killed by SIGKILL" in text
    assert "continuing with workers 0, 2" in text
    assert {one["kind"] for one in data(killed)["marks"]} == {"failure", "regroup"}
    assert "each once" in text and "0 lost, 0 repeated" in text
    missing = summary.samples - sum(one.samples for one in summary.workers)  # what it could not report any more
    assert [one.at_least for one in summary.workers] == [False, missing > 0, False]
    assert 'data-name="after"' in page(killed) and "when" not in re.findall(r'data-name="(.*?)"', page(killed))


def test_the_summary_says_what_the_result_says(killed: Path) -> None:
    summary, result = summarise(killed), Run(killed).result
    for name in ("steps", "epochs", "samples", "loss", "validation", "test", "failures"):
        assert dataclasses.asdict(summary)[name] == result[name], name
    for one in summary.workers:
        assert one.time_s == pytest.approx(result["time_s"][str(one.worker)], abs=2e-3)
    for name in ("cpu_s", "memory_mb", "bytes_sent"):
        assert summary.resources[name] == pytest.approx(result["resources"][name])


def test_the_report_as_tables_and_as_json(killed: Path, tmp_path: Path) -> None:
    (killed / "report.html").unlink()
    trace = tmp_path / "trace.json"
    shown = command("report", killed, "--trace", trace, "--steps", "10:40")
    assert shown.returncode == 0, shown.stderr
    for words in (
        "completed",
        "killed by SIGKILL",
        "where the time of the steps went",
        "test accuracy",
        "order sha256",
    ):
        assert words in shown.stdout
    assert (killed / "report.html").exists()
    names = {one["name"] for one in json.loads(trace.read_text())["traceEvents"]}
    assert {"step 10", "step 40", "failure", "compute"} <= names and not {"step 9", "step 41"} & names
    before = (killed / "report.html").stat().st_mtime_ns
    asked = command("report", killed, "--json")
    assert json.loads(asked.stdout)["failures"] == 1 and asked.stderr == ""
    assert (killed / "report.html").stat().st_mtime_ns == before


def test_a_run_that_failed(tmp_path: Path) -> None:
    ended = train(tmp_path / "run", "--workers", "2", "--set", "raises=7")
    assert ended.returncode == errors.WorkerFailed.code
    assert f"report: {tmp_path / 'run' / 'report.html'}" in ended.stderr
    text = visible(tmp_path / "run")
    assert "failed, exit code 20" in text and "worker failed (exit code 20)" in text


def test_a_run_that_failed_before_its_first_step(tmp_path: Path) -> None:
    ended = train(tmp_path / "run", "--workers", "2", "--set", "batch=0")
    assert ended.returncode == errors.JobError.code and "report" not in ended.stderr
    assert "No step on record" in visible(tmp_path / "run") and "<canvas" not in page(tmp_path / "run")


def test_a_resumed_run(killed: Path, tmp_path: Path) -> None:
    """A worker was lost in the first start: it stays lost, whoever has its number in the second one."""
    out = tmp_path / "run"
    shutil.copytree(killed, out)
    assert train(out, "--workers", "2", "--set", "epochs=11", "--resume").returncode == 0
    text = visible(out)
    assert "165 of 165" in text and "resumed after step 150 on 2 workers" in text and "2 starts" in text
    assert [one["kind"] for one in data(out)["marks"]] == ["failure", "regroup", "resume"]
    assert data(out)["losses"]["step"] == list(range(1, 166))
    summary, result = summarise(out), Run(out).result
    assert summary.failures == result["failures"] == 1 and "of 5 in 2 starts" in text
    rows = [(one.start, one.worker, bool(one.lost)) for one in summary.workers]
    assert rows == [(1, 0, False), (1, 1, True), (1, 2, False), (2, 0, False), (2, 1, False)]
    assert "worker 1, start 1 ✕ lost" in re.sub(r"\s+", " ", text) and "worker 1, start 2" in text
    assert summary.workers[1].pid != summary.workers[4].pid
    assert not any(one.at_least for one in summary.workers if one.start == 2)
    assert re.search(r"1 ✕ lost +1 ", command("report", out).stdout)


def test_a_run_that_is_going_on_and_then_interrupted(tmp_path: Path) -> None:
    out = tmp_path / "run"
    more = ("--workers", "2", "--threads", "1", "--set", "epochs=200", "--set", "delay=0.02")
    with start("train", job_file("steady"), "--out", out, *more) as process:
        events_until(out, process, 5)
        shown = command("report", out)
        assert shown.returncode == 0 and "It is running" in shown.stdout
        assert "It is running" in visible(out)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == errors.Interrupted.code
    assert "It was interrupted" in visible(out)


def test_from_python(tmp_path: Path) -> None:
    cordee.train(job_file("steady"), workers=2, threads=1, out=tmp_path / "run", progress=False)
    assert "completed" in visible(tmp_path / "run")


# ------------------------------------------------------------- what must not happen


def test_a_report_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "run" / "report.html" / "in the way").mkdir(parents=True)
    ended = train(tmp_path / "run", "--workers", "2", "--set", "epochs=1")
    assert ended.returncode == 0 and "note: the report could not be written" in ended.stderr
    assert "report:" not in ended.stdout and "test:" in ended.stdout
    (tmp_path / "second" / "report.html" / "in the way").mkdir(parents=True)
    ended = train(tmp_path / "second", "--workers", "2", "--set", "raises=7")
    assert ended.returncode == errors.WorkerFailed.code
    assert "it fails, as it was told to" in ended.stderr.splitlines()[-1]


def test_a_start_that_is_refused_leaves_the_report_alone(tmp_path: Path) -> None:
    assert train(tmp_path / "run", "--set", "epochs=1").returncode == 0
    before = (tmp_path / "run" / "report.html").stat().st_mtime_ns
    assert train(tmp_path / "run", "--set", "epochs=1").returncode == errors.UsageError.code
    assert (tmp_path / "run" / "report.html").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], ["nowhere is no run", "events.jsonl"]),
        (["empty"], ["empty is no run"]),
        (["."], ["is no run", "runs/b, runs/a"]),
        (["job.py"], ["job.py is no run", "runs/b, runs/a"]),
        (["runs/a", "--steps", "1:2"], ["--trace"]),
        (["runs/a", "--trace", "t.json", "--steps", "x"], ["--steps x", "100:200"]),
        (["runs/a", "--trace", "no/where.json"], ["no/where.json"]),
    ],
)
def test_what_a_user_may_get_wrong(arguments: list[str], words: list[str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "job.py").touch()
    for name, age in (("a", 100), ("b", 10)):
        events = write(tmp_path / "runs" / name, begun(0.0, 1)) / "events.jsonl"
        os.utime(events, (time.time() - age,) * 2)
    ended = command("report", *arguments, cwd=tmp_path)
    assert ended.returncode in (errors.UsageError.code, errors.StorageError.code)
    message = ended.stderr[ended.stderr.find("cordee: ") :]
    assert all(word in message for word in words), message
    assert "Traceback" not in ended.stderr


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    write_report(hostile_run(tmp_path))
    made = page(tmp_path)
    assert "<script>alert" not in made and "<img" not in made and '"><b>' not in made
    assert made.count("<script") == 3  # the data and the two scripts of the page
    assert set(data(tmp_path)["metrics"]["values"]) == {HOSTILE, '"><b>'}
    shown = command("report", tmp_path)
    assert "alert(1)" in shown.stdout and "\x1b" not in shown.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_very_long_run_has_a_small_report(tmp_path: Path) -> None:
    write(tmp_path, long_run(200_000, 8))
    made = write_report(tmp_path)
    assert made.stat().st_size < 1_000_000
    assert "200,000" in visible(tmp_path)


def test_many_workers_have_a_small_report(tmp_path: Path) -> None:
    made = write_report(write(tmp_path, long_run(100, 400)))
    assert made.stat().st_size < 1_000_000
    assert "376 workers not shown" in visible(tmp_path)


def test_the_report_needs_no_torch(killed: Path) -> None:
    code = f"""
import sys
from cordee.watch.report import write_report
write_report({str(killed)!r})
print("torch" in sys.modules, "numpy" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert done.stdout.split() == ["False", "False"]
