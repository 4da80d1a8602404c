"""The command line itself: a mistake is told in one line, help shows what can be typed, plans are listed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cordee.cli import main
from cordee.cli.usage import find_misspelt
from cordee.core.errors import JobError, PlanError, UsageError
from cordee.core.events import StartEvent, StepEvent
from cordee.core.plan import Plan, plan_keys
from cordee.core.plantext import written
from cordee.diagnose.room import Room
from cordee.runtime import resources
from cordee.split.schedules.one_f_one_b import one_f_one_b
from cordee.train import fitting
from cordee.watch.report import Reported
from harness import JOBS

Read = pytest.CaptureFixture[str]


def refused(words: list[str], capsys: Read, code: int = UsageError.code) -> str:
    """What the one line says behind `cordee: `."""
    assert main._run(words) == code
    said = capsys.readouterr().err
    assert said.startswith("cordee: ") and said.count("\n") == 1, said
    return said.removeprefix("cordee: ").rstrip("\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train j.py --workers two", "invalid value for '--workers': "),
        ("train j.py --workers=2.5", "invalid value for '--workers': "),
        ("train j.py --deadline soon", "invalid value for '--deadline': "),
        ("doctor --port 0", "invalid value for '--port': "),
        ("bench scaling j.py --rounds x", "invalid value for '--rounds': "),
        ("train j.py --wokers 2", "--wokers: there is no such option. Did you mean --workers? All options: "),
        ("train j.py --workers", "--workers: "),
        ("train", "JOB is missing (Python file that defines `job`). See `cordee train --help`"),
        ("trian j.py", "no such command 'trian'. Did you mean 'train'"),
        ("train j.py more", "got unexpected extra argument"),
        ("train j.py --set epochs", "--set epochs: expected name=value"),
        ("train j.py --rendezvous 127.0.0.1:29400", "--rendezvous 127.0.0.1:29400 needs --nodes, the number of hosts"),
        ("train j.py --nodes 2", "--nodes 2 needs --rendezvous"),
    ],
)
def test_one_line_for_every_mistake(words: str, said: str, capsys: Read) -> None:
    assert refused(words.split(), capsys).startswith(said)


def test_a_folder_is_not_taken_for_a_missing_file(tmp_path: Path, capsys: Read) -> None:
    (tmp_path / "digits.py").write_text("")
    assert refused(["train", str(tmp_path)], capsys, JobError.code) == (
        f"{tmp_path} is a folder: expected a Python file; it holds digits.py"
    )


@pytest.mark.parametrize("words", ["train", "run", "plan", "warm", "report", "doctor", "bench scaling", "twin run"])
def test_help_shows_values_only_where_there_are_any(words: str, capsys: Read) -> None:
    assert main._run([*words.split(), "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split()).replace("--help -h <bool>", "")  # that one is typer's own
    assert "<bool>" not in said and "<list" not in said
    assert "cordee plan" in said and "exit-codes.md" in said
    assert ("<name=value>" in said) == (words in ("train", "plan", "bench scaling"))


def test_the_first_help_names_the_exit_codes(capsys: Read) -> None:
    assert main._run(["--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "2 usage" in said and "130 interrupted" in said
    assert main._run([]) == UsageError.code


# ------------------------------------------------------------- plans


def test_the_cut_of_a_job_is_printed_below_the_plan(tmp_path: Path, capsys: Read) -> None:
    job = str(JOBS / "sliced.py")
    assert main._run(["plan", "tensor=2", "--job", job, "--set", "kind=mlp", "--set", "cut=found"]) == 0
    said = capsys.readouterr().out
    assert [line.split()[:4] for line in said.splitlines() if line.startswith("# ")] == [
        ["#", "memory", "per", "worker:"],
        ["#", "layer", "weight", "cut"],
        ["#", "0", "32×64", "column"],
        ["#", "2", "16×32", "row"],
        ["#", "4", "10×16", "whole"],
        ["#", "Each", "worker", "holds"],
    ]
    (tmp_path / "plan.yaml").write_text(said)
    assert Plan.parse(tmp_path / "plan.yaml") == Plan(tensor=2)
    assert main._run(["plan", "tensor=2", "--job", job, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cut"]["layers"][0]["how"] == "column"
    assert main._run(["plan", "tensor=2,pipeline=2", "--job", job, "--set", "kind=blocks", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["cut"]["slices"] == 2 and {unit["stage"] for unit in told["stages"]} == {0, 1}
    assert told["schedule"]["table"] == str(one_f_one_b(2, 4)) and told["schedule"]["held"] == [2, 1]
    assert main._run(["plan", "pipeline=2,schedule=gpipe", "--job", job, "--set", "kind=blocks"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"# a step of 4 micro-batches .*\n# rank 0 F0>.*B3<.*\n# rank 1 .*F0>", said)
    assert re.search(r"# rank by rank, idle for \d+%, \d+% of the step, .* held: 4, 4\n", said)
    assert main._run(["plan", "recompute=block", "--job", job, "--json"]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert memory["state"] == 2 * memory["gradients"] and memory["total"] > memory["activations"] > 0


def test_memory_is_compared_with_that_of_the_devices_that_workers_would_have(
    capsys: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(resources, "gpus", lambda: 1)
    monkeypatch.setattr(
        fitting, "room_of", lambda model, device, workers: asked.append((device, workers)) or Room(1, 1, on_gpu=True)
    )
    job = str(JOBS / "sliced.py")
    assert main._run(["plan", "shard=params", "--workers", "2", "--job", job, "--set", "kind=mlp"]) == 0
    assert asked == [("cuda:0", 2)] and "of GPU memory" in capsys.readouterr().out


def test_the_keys_of_a_plan_are_listed(capsys: Read) -> None:
    assert main._run(["plan"]) == 0
    said = capsys.readouterr().out
    for key in plan_keys():
        assert f"{key.name}={written(key.default)}" in said


def test_a_plan_is_printed_with_all_keys(tmp_path: Path, capsys: Read) -> None:
    given = "proportions=5:3:2,precision=bf16"
    assert main._run(["plan", given]) == 0
    (tmp_path / "plan.yaml").write_text(capsys.readouterr().out)
    assert Plan.parse(tmp_path / "plan.yaml") == Plan.parse(given)
    assert main._run(["plan", str(tmp_path / "plan.yaml"), "--json"]) == 0
    assert Plan.from_dict(json.loads(capsys.readouterr().out)) == Plan.parse(given)


def test_without_workers_a_plan_is_checked_for_as_many_as_its_proportions_need(capsys: Read) -> None:
    for given in ("proportions=5:3:2", "tensor=2,pipeline=2,proportions=5:3:2", "shard=params,shards=2"):
        assert main._run(["plan", given]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["precison=bf16"], "'precision'"),
        (["proportions=5:3:2", "--workers", "2"], "2 start"),
        (["tensor=2,proportions=5:3:2", "--workers", "4"], "4 workers under tensor=2 are 2 replicas"),
        (["graphs=true"], "compile=true"),
        (["digits.py"], "digits.py is a Python file"),
    ],
)
def test_a_plan_is_checked(words: list[str], said: str, capsys: Read) -> None:
    assert said in refused(["plan", *words], capsys, PlanError.code)


# ------------------------------------------------------------- options of a script


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (["--worker", "3"], [("--worker 3", "--workers")]),
        (["--worker=3", "data.csv"], [("--worker=3", "--workers")]),
        (["--thread", "--fast"], [("--thread", "--threads")]),
        (["--num-workers", "3", "--epochs", "4", "-w", "x", "workers"], []),
    ],
)
def test_a_scripts_options_that_look_like_ours(given: list[str], asked: list[tuple[str, str]]) -> None:
    assert find_misspelt(given, ["--workers", "--threads", "--out"]) == asked


# ------------------------------------------------------------- the line at the end


def test_the_last_line_says_how_far_it_came() -> None:
    heard: list[str] = []
    listener = Reported(Path(), lambda event: heard.append(event.kind), tell=False)
    assert listener.reached() == ""
    listener(StartEvent(1, "", False))
    for number in (7, 8):
        listener(StepEvent(number, 0, number / 10, samples=1, ms=1.0))
    assert listener.reached().startswith("2 steps (of 8 in all), last loss 0.8000, ")
    assert heard == ["start", "step", "step"]
