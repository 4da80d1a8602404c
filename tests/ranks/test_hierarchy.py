"""Sums over hosts with several ranks each: the same training as in one process, and the same bits on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness import JOBS, Run, assert_same, run_script, train


@pytest.mark.thinned(3)
@pytest.mark.parametrize("homes", ["aabb", "aaab", "abbc", "abab", "abb"])
@pytest.mark.parametrize(("job", "plan"), [("mlp", "auto"), ("cnn", "auto"), ("gpt", "bucket_mb=0.05")])
def test_training_is_that_of_one_process(
    homes: str, job: str, plan: str, reference: Callable[..., Run], tmp_path: Path
) -> None:
    run = train("hosted", tmp_path / "run", workers=len(homes), plan=plan, of=job, homes=homes)
    assert_same(run, reference(job))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("homes", ["aabb", "aaab", "abbc", "abab", "aabbb"])
def test_all_ranks_get_the_same_bits(homes: str, tmp_path: Path) -> None:
    run_script(JOBS / "hosted_sums.py", tmp_path / "run", homes, workers=len(homes))


@pytest.mark.parametrize(("homes", "plan"), [("aaa", "auto"), ("abc", "auto"), ("aab", "backend=gloo")])
def test_where_it_is_not_used(homes: str, plan: str, tmp_path: Path) -> None:
    run_script(JOBS / "hosted_sums.py", tmp_path / "run", homes, "flat", workers=len(homes), plan=plan)
