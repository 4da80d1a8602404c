"""Buffers that a forward pass changes by its batch are those of one process, or the run says that they are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alone import python
from harness import JOBS, Run, run_script

Told = dict[str, Any]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    told: dict[str, Told] = {}

    def find(kind: str) -> Told:
        if kind not in told:
            folder = tmp_path_factory.mktemp(kind)
            python(JOBS / "living.py", folder, kind)
            told[kind] = json.loads((folder / "0.json").read_text())
        return told[kind]

    return find


def statistical(run: Run) -> list[str]:
    return [event["message"] for event in run.of("warning") if "this run is statistical" in event["message"]]


@pytest.mark.parametrize(
    ("kind", "plan", "fate"),
    [
        ("centre", "proportions=3:0:2", []),
        ("centre", "auto", ["1", "0"]),
        ("centre", "auto", ["0", "7"]),
        ("instance", "auto", []),
        ("spectral", "auto", []),
    ],
)
def test_they_are_those_of_one_process(
    kind: str, plan: str, fate: list[str], alone: Any, warm: int, tmp_path: Path
) -> None:
    run = run_script(JOBS / "living.py", tmp_path / "run", str(tmp_path), kind, *fate, workers=3, plan=plan)
    assert [event["worker"] for event in run.of("failure")] == [int(one) for one in fate[:1]]
    wanted = alone(kind)
    for rank in range(2 if fate else 3):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        np.testing.assert_allclose(found["losses"], wanted["losses"], rtol=1e-11)
        assert found["ledger"] == wanted["ledger"] and found["ledger"]["lost"] == 0
        for name, value in wanted["state"].items():
            np.testing.assert_allclose(found["state"][name], value, rtol=0, atol=1e-9, err_msg=name)
    assert statistical(run) == []
    assert json.loads((run.out / "run.json").read_text())["faithfulness"] == "same"


def test_what_is_no_mean_is_said_to_be_statistical(warm: int, tmp_path: Path) -> None:
    run = run_script(JOBS / "living.py", tmp_path / "run", str(tmp_path), "codes", workers=2)
    said = statistical(run)
    assert [
        name for name in ("codes", "counts", "sums") if any(f"buffer 1.{name} of Codes" in one for one in said)
    ] == [
        "codes",
        "counts",
        "sums",
    ]
    assert json.loads((run.out / "run.json").read_text())["faithfulness"] == "statistical"
    one, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert one == other  # all workers go on with the same


NORMED = """
import torch
from torch import nn
import cordee

with cordee.session() as s:
    model = s.prepare(nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in s.batches(cordee.data.digits().train, batch=400):
        s.backward(nn.functional.cross_entropy(model(batch.x), batch.y))
        s.step(optimizer)
"""


@pytest.mark.parametrize(("plan", "expected"), [("accumulate=2", "statistical"), ("auto", "same")])
def test_batchnorm_over_micro_batches_is_said_to_be_statistical(
    plan: str, expected: str, warm: int, tmp_path: Path
) -> None:
    (tmp_path / "normed.py").write_text(NORMED)
    run = run_script(tmp_path / "normed.py", tmp_path / "run", workers=2, plan=plan)
    assert json.loads((run.out / "run.json").read_text())["faithfulness"] == expected
    assert bool(statistical(run)) is (expected == "statistical")
