"""Two sessions in one script, and one model in both: the second trains as if it were the first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import JOBS, run_script


def told(folder: Path, *words: str, workers: int, plan: str = "auto") -> list[dict[str, Any]]:
    """What the workers that are left at the end tell, in rank order."""
    folder.mkdir()
    run_script(JOBS / "two_sessions.py", folder / "run", str(folder), *words, workers=workers, plan=plan)
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


@pytest.mark.parametrize(
    ("how", "dies", "plan"),
    [
        ("new", None, "auto"),
        ("same", None, "proportions=2:0:1"),
        pytest.param("twice", None, "share=sampled", marks=pytest.mark.slow),
        ("left", None, "backend=gloo"),
        ("again", None, "backend=gloo"),
        ("new", 0, "auto"),
        pytest.param("twice", 2, "auto", marks=pytest.mark.slow),
    ],
)
def test_a_model_is_trained_in_two_loops(how: str, dies: int | None, plan: str, warm: int, tmp_path: Path) -> None:
    (alone,) = told(tmp_path / "alone", how, workers=1)
    assert len(alone["losses"]) == (22 if how in ("left", "again") else 30)
    struck = [] if dies is None else [str(dies)]
    found = told(tmp_path / "three", how, *struck, workers=3, plan=f"{plan},bucket_mb=0.01".removeprefix("auto,"))
    assert len(found) == 3 - len(struck)
    for one in found:
        np.testing.assert_allclose(one["losses"], alone["losses"], rtol=1e-12)
        assert one["ledgers"] == alone["ledgers"]
        assert all((ledger["lost"], ledger["repeated"]) == (0, 0) for ledger in one["ledgers"])
        for name, value in alone["state"].items():
            np.testing.assert_allclose(one["state"][name], value, rtol=0, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_session_takes_its_hooks_with_it(workers: int, warm: int, tmp_path: Path) -> None:
    assert [one["hooks"] for one in told(tmp_path / "run", "new", workers=workers)] == [[0, 0]] * workers
