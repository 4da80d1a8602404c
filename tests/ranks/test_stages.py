"""A training in stages: loops that are left at any place, each followed by one with an optimizer of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from harness import run_script

SCRIPT = """
import json, sys
from pathlib import Path
import torch
from torch import nn
import cordee
from cordee.train.session import stepper_of

draw = torch.Generator().manual_seed(0)
data = torch.randn(21, 4, generator=draw).double(), torch.randint(0, 2, (21,), generator=draw)
torch.manual_seed(0)
moved, hooks = [], []
with cordee.session() as s:
    model = s.prepare(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double())
    for leave in ("", "before the step", "after the step", ""):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for number, batch in enumerate(s.batches(data, batch=10)):
            before = model[0].weight.detach().clone()
            s.backward(nn.functional.cross_entropy(model(batch.x), batch.y))
            if leave == "before the step" and number == 2:  # one sample is left: all but one worker have none
                break
            s.step(optimizer)
            moved.append(not torch.equal(before, model[0].weight))
            hooks.append(len(model[0].weight._post_accumulate_grad_hooks or ()))
            if leave == "after the step" and number == 1:
                break
    told = {"state": [parameter.tolist() for parameter in model.parameters()], "moved": moved, "hooks": hooks}
    Path(sys.argv[1], f"{s.rank}.json").write_text(json.dumps(told | {"lost": stepper_of(s).ledger.lost}))
"""


def test_a_loop_may_be_left_before_or_after_an_update(warm: int, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)

    def told(workers: int) -> list[dict[str, Any]]:
        folder = tmp_path / str(workers)
        folder.mkdir()
        run_script(tmp_path / "script.py", folder / "run", str(folder), workers=workers)
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(workers)]

    (alone,) = told(1)
    assert alone["moved"] == [True] * 10
    for one in told(3):
        assert (one["moved"], one["lost"], max(one["hooks"]) <= 1) == ([True] * 10, 0, True)
        for mine, wanted in zip(one["state"], alone["state"], strict=True):
            np.testing.assert_allclose(mine, wanted, rtol=0, atol=1e-12)
