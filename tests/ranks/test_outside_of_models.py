"""What begins with other numbers on every worker: shared from the first one if a model holds it, else refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordee.core.errors import UsageError
from harness import run_script

SCRIPT = """
import json, sys
from pathlib import Path
import torch
from torch import nn
import cordee
from cordee.train.session import stepper_of

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(64, 10).double()
        self.register_buffer("mask", (torch.rand(10) < 0.7).double(), persistent=False)
        self.register_buffer("places", torch.arange(10).expand(3, 10), persistent=False)

    def forward(self, x):
        return self.body(x) * self.mask

second, alike = (sys.argv[2] == one for one in ("second", "alike"))
losses = []
with cordee.session() as s:
    torch.manual_seed(stepper_of(s).team.membership.worker)
    model = s.prepare(Scaled())
    if alike:
        torch.manual_seed(0)
    scale = nn.Parameter(torch.randn((), dtype=torch.float64))
    shift = torch.randn(10, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([*model.parameters()] if second else [*model.parameters(), scale, shift], lr=1e-2)
    strays = torch.optim.Adam([scale, shift], lr=1e-2)
    for batch in s.batches(cordee.data.digits().train, batch=101):
        loss = nn.functional.cross_entropy(model(batch.x.double()) * scale.exp() + shift, batch.y)
        s.backward(loss)
        done = s.step(optimizer)
        if second and done:
            done = s.step(strays)
        if done:
            losses.append(s.last.loss)
    state = {"scale": scale.tolist(), "shift": shift.tolist(), "mask": model.mask.tolist()}
    state["weight"] = model.body.weight.tolist()
    norm = s.last.grad_norm
    Path(sys.argv[1], f"{s.rank}.json").write_text(json.dumps({"losses": losses, "state": state, "norm": norm}))
"""


def told(folder: Path, workers: int, how: str) -> tuple[Any, list[dict[str, Any]]]:
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    run = run_script(folder / "script.py", folder / "run", str(folder), how, workers=workers)
    return run, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(workers)]


def test_parameters_and_buffers_are_those_of_the_first_worker(warm: int, tmp_path: Path) -> None:
    one, (alone,) = told(tmp_path / "1", 1, "alike")
    run, found = told(tmp_path / "3", 3, "alike")
    for worker in found:
        np.testing.assert_allclose(worker["losses"], alone["losses"], rtol=1e-12)
        np.testing.assert_allclose(worker["norm"], alone["norm"], rtol=1e-9)
        for name, value in alone["state"].items():
            np.testing.assert_allclose(worker["state"][name], value, rtol=0, atol=1e-10, err_msg=name)
    norms = [[event["grad_norm"] for event in each.of("step")] for each in (one, run)]
    assert len(norms[0]) == 15 and min(norms[0]) > 0
    np.testing.assert_allclose(norms[1], norms[0], rtol=1e-9)
    assert {event["lr"] for event in run.of("step")} == {1e-2}


@pytest.mark.parametrize("how", ["first", "second"])
def test_parameters_that_no_model_holds_have_to_be_alike(how: str, warm: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="begin with other numbers on every worker"):
        told(tmp_path / "3", 3, how)
