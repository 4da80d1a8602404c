"""What users draw without a seed, to split or to augment data, is the same whoever trains and however often."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import Run, assert_same, command, job_file, train

SCRIPT = """
import os, sys
open(sys.argv[1], "w").write(str([hash("word"), os.environ.get("PYTHONHASHSEED")]))
"""
Reference = Callable[..., Run]


@pytest.mark.parametrize("plan", ["auto", "share=sampled"])
def test_splits_shuffles_and_augmentation_of_several_workers(plan: str, reference: Reference, tmp_path: Path) -> None:
    assert_same(train("drawn", tmp_path / "run", workers=3, plan=plan), reference("drawn"))


def test_a_later_start_draws_the_same(reference: Reference, tmp_path: Path) -> None:
    """Also in another process, where Python gives sets another order."""
    for more in (["--set", "stop_steps=7"], ["--resume", "--workers", "2", "--set", "stop_steps=99"]):
        done = command("train", job_file("drawn"), "--out", tmp_path / "run", *more)
        assert done.returncode == 0, done.stderr
    assert_same(Run(tmp_path / "run"), reference("drawn"))


@pytest.mark.slow
def test_users_may_choose_the_order_of_sets(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    said = []
    for given in ("", "", "7"):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
        environment |= {"PYTHONHASHSEED": given} if given else {}
        command("run", "--out", tmp_path / f"run{len(said)}", script, tmp_path / "said", env=environment)
        said.append((tmp_path / "said").read_text())
    assert said[0] == said[1] and said[0].endswith(", None]") and said[2].endswith(", '7']")
    assert said[0].partition(",")[0] != said[2].partition(",")[0]


def test_samples_that_draw_from_a_generator_of_their_own_are_told(tmp_path: Path) -> None:
    for own, times in (("", 0), ("x", 1)):
        said = [event["message"] for event in train("drawn", tmp_path / f"own{own}", own=own).of("warning")]
        assert sum("differ each time they are read" in message for message in said) == times
