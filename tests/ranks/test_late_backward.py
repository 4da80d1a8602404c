"""A script that begins in mid-run to compute its gradient in two pieces, when the first one was sent already."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from harness import run_script

# Over a mebibyte of parameters, so that there are two buckets and the first is sent early.
SCRIPT = """
import json, sys
from pathlib import Path
import torch
from torch import nn
import cordee

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 2000), nn.ReLU(), nn.Linear(2000, 90), nn.ReLU(), nn.Linear(90, 10)).double()
losses = []
with cordee.session(seed=3) as s:
    model = s.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for batch in s.batches(cordee.data.digits().train, batch=int(sys.argv[1]), epochs=1):
        x, pieces = batch.x.double(), 2 if len(losses) >= 4 else 1
        for _ in range(pieces):
            s.backward(nn.functional.cross_entropy(model(x), batch.y) / pieces)
        if s.step(optimizer):
            losses.append(s.last.loss)
        if len(losses) == 12:
            break
    state = [parameter.abs().sum().item() for parameter in model.parameters()]
    Path(sys.argv[2], f"{s.rank}.json").write_text(json.dumps([losses, state]))
"""


@pytest.mark.parametrize("batch", [2, 50])  # with 2, one of 3 workers has an empty share
def test_what_was_sent_early_counts_once(batch: int, warm: int, tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(SCRIPT)
    told = []
    for workers in (1, 3):
        folder = tmp_path / str(workers)
        folder.mkdir()
        run_script(tmp_path / "late.py", tmp_path / f"run{workers}", str(batch), str(folder), workers=workers)
        told += [json.loads((folder / f"{rank}.json").read_text()) for rank in range(workers)]
    for losses, state in told[1:]:
        np.testing.assert_allclose(losses, told[0][0], rtol=1e-12)
        np.testing.assert_allclose(state, told[0][1], rtol=1e-11)
