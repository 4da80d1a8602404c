"""A worker dies while others predict: all outputs are there, in the order of the input, as in one process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from harness import JOBS, Run, run_script

AT = 5
"""The agreement that is struck: the fifth of eleven batches."""


def predicted(folder: Path, acts: dict[int, dict[str, list[str]]], *, workers: int) -> Run:
    folder.mkdir()
    return run_script(
        JOBS / "predicting.py", folder / "run", str(folder), json.dumps(acts) if acts else "", workers=workers
    )


@pytest.fixture(scope="module")
def wanted(warm: int, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    folder = tmp_path_factory.mktemp("predicting") / "alone"
    predicted(folder, {}, workers=1)
    found: np.ndarray = np.load(folder / "0.npy")
    assert found.shape == (1003, 2) and len(np.unique(found[:, 0])) == 1003
    return found


@pytest.mark.parametrize(
    ("acts", "givers"),
    [
        pytest.param(
            {1: {f"agree-{AT}": ["lose"]}, 2: {f"agreed-{AT}": ["die", f"agreed-{AT}.0", f"lost-{AT}.1"]}},
            {0},
            id="one is handed what another has",
        ),
        pytest.param(
            {0: {f"agree-{AT}": ["lose"]}, 2: {f"agreed-{AT}": ["die", f"lost-{AT}.0", f"agreed-{AT}.1"]}},
            {1},
            id="the first is handed what another has",
        ),
        pytest.param(
            {0: {f"agreed-{AT - 1}": ["die", f"agree-{AT}.1", f"agree-{AT}.2"]}}, {None}, id="nobody has it yet"
        ),
    ],
)
def test_a_worker_dies_within_the_predictions(
    acts: dict[int, dict[str, list[str]]], givers: set[int | None], wanted: np.ndarray, tmp_path: Path
) -> None:
    run = predicted(tmp_path / "three", acts, workers=3)
    (victim,) = [event["worker"] for event in run.of("failure")]
    assert victim == next(worker for worker, places in acts.items() if any(act[0] == "die" for act in places.values()))
    left = [worker for worker in range(3) if worker != victim]
    gos = [json.loads((tmp_path / "three" / f"go-2.{worker}").read_text()) for worker in left]
    assert {go["giver"] for go in gos} == givers
    for worker in left:
        np.testing.assert_allclose(np.load(tmp_path / "three" / f"{worker}.npy"), wanted, rtol=1e-12)
