"""`cordee.split.matmul`: a product over workers is the product, whoever is lost meanwhile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cordee.core.errors import UsageError
from harness import JOBS, run_script

SCRIPT = JOBS / "products.py"
NUMBERS = 7 * 5 * 8
"""Bytes of the product."""


def test_all_workers_have_the_product_and_say_what_it_took(warm: int, tmp_path: Path) -> None:
    run_script(SCRIPT, tmp_path / "run", str(tmp_path), workers=4)
    for rank in range(4):
        told = json.loads((tmp_path / f"{rank}.json").read_text())
        assert all(NUMBERS <= count <= 2 * NUMBERS + 100 for count in told["bytes"].values()), told
        assert len(told["refused"]) == 1 and "was not given the same on all workers" in told["refused"][0]


def test_the_others_compute_the_part_of_a_lost_worker(warm: int, tmp_path: Path) -> None:
    run = run_script(SCRIPT, tmp_path / "run", str(tmp_path), "1", workers=3)
    assert [event["worker"] for event in run.of("failure")] == [1]
    assert [json.loads((tmp_path / f"{rank}.json").read_text())["size"] for rank in (0, 2)] == [2, 2]
    assert not (tmp_path / "1.json").exists()


def test_workers_in_different_steps_cannot_share_one(warm: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs all workers at the same time, but with sync=local"):
        run_script(SCRIPT, tmp_path / "run", str(tmp_path), workers=2, plan="sync=local")
