"""Embeddings with sparse gradients: on several workers they train what one process trains."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import JOBS, Run, assert_same, run_script, train

Reference = Callable[..., Run]

LOOP = f"""
import json, sys
from pathlib import Path
sys.path.insert(0, {str(JOBS)!r})
import torch
from torch import nn
from rows import Rows, WORDS, samples
import cordee
from cordee.sync import buckets
from cordee.train.session import stepper_of

folder = Path(sys.argv[1])
torch.manual_seed(0)
model, (x, y) = Rows(False), samples()
largest, losses, layouts = [], [], set()
make = buckets.make_bucket
buckets.make_bucket = lambda group, *more: largest.append(sum(p.numel() for p in group)) or make(group, *more)

class Seen(torch.optim.SparseAdam):
    def step(self, closure=None):
        layouts.update(p.grad.layout for group in self.param_groups for p in group["params"] if p.grad is not None)
        return super().step(closure)

with cordee.session() as s:
    model = s.prepare(model)
    tables = [model.words.weight, model.bag.weight, model.rare.weight, model.late.weight]
    sparse, dense = Seen(tables, lr=0.01), torch.optim.AdamW(model.head.parameters(), lr=0.01)
    for batch in s.batches(cordee.data.arrays(x, y).train, batch=29, epochs=2):
        batch.x[:, 3] += 2 * batch.epoch                          # some words that `late` knows, in the second epoch
        s.backward(nn.functional.cross_entropy(model(batch.x), batch.y))
        s.step(sparse, clip=0.05)
        if s.step(dense):
            losses.append(s.last.loss)
    assert layouts == {{torch.sparse_coo}}
    told = {{"losses": losses, "held": largest[-1:], "ledger": dict(vars(stepper_of(s).ledger))}}
    told["state"] = {{name: value.tolist() for name, value in model.state_dict().items()}}
    (folder / f"{{s.size}}-{{s.rank}}.json").write_text(json.dumps(told))
"""


@pytest.mark.parametrize(
    ("workers", "plan", "settings"),
    [
        pytest.param(3, "auto", {"optimizer": "sgd"}, id="SGD"),
        pytest.param(2, "backend=gloo,bucket_mb=0.01", {"optimizer": "adagrad"}, id="Adagrad, over sockets"),
        pytest.param(3, "proportions=3:0:1", {"optimizer": "sgd", "clip": 0.05}, id="an empty share, clipped"),
        pytest.param(3, "accumulate=2", {"optimizer": "sparseadam", "sparse_only": True}, id="SparseAdam, accumulated"),
    ],
)
def test_a_job(workers: int, plan: str, settings: dict[str, Any], reference: Reference, tmp_path: Path) -> None:
    run = train("rows", tmp_path / "run", workers=workers, plan=plan, **settings)
    assert_same(run, reference("rows", **settings))


def test_two_optimizers_and_a_table_that_is_used_late(warm: int, tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    for workers in (1, 3):
        run = run_script(tmp_path / "loop.py", tmp_path / f"run-{workers}", str(tmp_path), workers=workers)
    assert run.of("failure") == []
    alone, *others = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("1-0", "3-0", "3-1", "3-2"))
    for other in others:
        np.testing.assert_allclose(other["losses"], alone["losses"], rtol=1e-12)
        assert other["ledger"] == alone["ledger"]
        for name, value in alone["state"].items():
            np.testing.assert_allclose(other["state"][name], value, rtol=0, atol=1e-9)
    assert [other["held"] for other in others] == [[0]] * 3  # no dense memory for any table in the end


def test_a_survivor_that_is_behind_has_the_rows(reference: Reference, tmp_path: Path) -> None:
    """Worker 2 dies after worker 0 has the result of a step and before worker 1: it is handed over, clipped."""
    (tmp_path / "words").mkdir()
    acts = {1: {"agree-6": ["lose"]}, 2: {"agreed-6": ["die", "agreed-6.0", "lost-6.1"]}}
    run = train(
        "rows",
        tmp_path / "run",
        workers=3,
        clip=0.05,
        acts=json.dumps(acts),
        words=tmp_path / "words",
        optimizer="adagrad",
    )
    assert [event["worker"] for event in run.of("failure")] == [2]
    assert [json.loads(path.read_text())["giver"] for path in (tmp_path / "words").glob("go-2.*")] == [0, 0]
    assert_same(run, reference("rows", clip=0.05, optimizer="adagrad"))
