"""Two sessions in one script, and one model in both: the second trains as if it were the first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import JOBS, run_script

SENT = pytest.mark.xfail(strict=True, reason="what the hooks have sent is still under way in the next loop")
HOOKS = pytest.mark.xfail(strict=True, reason="a session leaves its hooks and its buckets behind")


def told(how: str, folder: Path, workers: int, plan: str = "auto") -> list[dict[str, Any]]:
    folder.mkdir()
    run_script(JOBS / "two_sessions.py", folder / "run", str(folder), how, workers=workers, plan=plan)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(workers)]


@pytest.mark.parametrize(
    "how", ["new", "same", "twice", pytest.param("left", marks=SENT), pytest.param("again", marks=SENT)]
)
def test_a_model_is_trained_in_two_loops(how: str, warm: int, tmp_path: Path) -> None:
    (alone,) = told(how, tmp_path / "alone", 1)
    assert len(alone["losses"]) == (22 if how in ("left", "again") else 30)
    for one in told(how, tmp_path / "three", 3, "bucket_mb=0.01"):
        np.testing.assert_allclose(one["losses"], alone["losses"], rtol=1e-12)
        assert one["ledgers"] == alone["ledgers"]
        assert all((ledger["lost"], ledger["repeated"]) == (0, 0) for ledger in one["ledgers"])
        for name, value in alone["state"].items():
            np.testing.assert_allclose(one["state"][name], value, rtol=0, atol=1e-9, err_msg=name)


@HOOKS
@pytest.mark.parametrize("workers", [1, 2])
def test_a_session_takes_its_hooks_with_it(workers: int, warm: int, tmp_path: Path) -> None:
    assert [one["hooks"] for one in told("new", tmp_path / "run", workers)] == [[0, 0]] * workers
