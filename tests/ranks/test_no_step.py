"""A gradient that no step follows, as in a loop that gathers gradients over several batches by itself; and a loop that
trains past the session altogether.
"""

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

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 30), nn.Tanh(), nn.Linear(30, 10)).double()
with cordee.session(seed=3) as s:
    model = s.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number, batch in enumerate(s.batches(cordee.data.digits().train, batch=101, epochs=1)):
        s.backward(nn.functional.cross_entropy(model(batch.x.double()), batch.y) / 2)
        if number % 2:
            s.step(optimizer)
    state = [parameter.tolist() for parameter in model.parameters()]
    Path(sys.argv[1], f"{s.rank}.json").write_text(json.dumps(state))
"""


def test_a_step_after_every_second_batch_is_refused_or_right(warm: int, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)

    def states(workers: int) -> list[list[Any]]:
        folder = tmp_path / str(workers)
        folder.mkdir()
        run_script(
            tmp_path / "script.py", folder / "run", str(folder), workers=workers, plan="backend=gloo,bucket_mb=0.01"
        )
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(workers)]

    try:
        found = states(3)
    except UsageError as error:
        assert "accumulate" in str(error)  # which does the same in a way that survives the loss of a worker
        return
    (alone,) = states(1)
    for one in found:
        for mine, wanted in zip(one, alone, strict=True):
            np.testing.assert_allclose(mine, wanted, rtol=0, atol=1e-9)


PLAIN = """
import torch
from torch import nn
import cordee

with cordee.session() as s:
    model = s.prepare(nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in s.batches(cordee.data.digits().train, batch=101):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch.x), batch.y).backward()
        optimizer.step()
"""


def test_an_ordinary_loop_does_not_train_each_worker_by_itself(warm: int, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    with pytest.raises(UsageError, match=r"s\.step\(optimizer\) instead of optimizer\.step\(\)"):
        run_script(tmp_path / "plain.py", tmp_path / "run", workers=2)
