"""Workers that are slow are not lost: the others do not regroup because of them."""

from __future__ import annotations

from pathlib import Path

from harness import JOBS, run_script


def test_a_sum_that_ends_while_a_worker_looks_up_is_no_failure(warm: int, tmp_path: Path) -> None:
    run = run_script(JOBS / "late.py", tmp_path / "run", workers=2, plan="backend=gloo")
    assert run.of("failure") == [] and run.of("regroup") == []
