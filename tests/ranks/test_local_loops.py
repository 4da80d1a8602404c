"""Own loops and buffers with local steps: workers compute parts of different steps until all merge."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordee.core.errors import UsageError
from harness import Run, run_script, train
from replay import assert_audited, parts_done

Reference = Callable[..., Run]

SCRIPT = """
import json, sys, time
from pathlib import Path
import torch
from torch import nn
import cordee
from cordee.train.session import stepper_of

class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(64, 10).double(), nn.BatchNorm1d(64).double()
        self.register_buffer("samples", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.samples += len(x)
        return self.linear(self.norm(x.double()))

folder, every = Path(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)
model, data, steps, right = Counted(), cordee.data.digits(validation=0.1), [], []
with cordee.session(seed=3, plan=f"sync=local,local_steps={every}") as s:
    model = s.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in s.batches(data.train, batch=101, epochs=2):
        time.sleep(0.02 * (stepper_of(s).team.membership.worker == 1))
        s.backward(nn.functional.cross_entropy(model(batch.x), batch.y))
        if s.step(optimizer, clip=1.0):
            steps.append(s.last.steps)
            if s.last.steps % 8 == 0:
                count = torch.zeros(2)
                model.eval()
                for part in s.batches(data.validation, batch=20):
                    found = model(part.x).argmax(1) == part.y
                    count += 0 if part.borrowed else torch.tensor([found.sum(), len(part)])
                model.train()
                assert s.agree([count])
                right.append(count.tolist())
    state = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
    ledger = dict(vars(stepper_of(s).ledger))
    found = {"steps": steps, "right": right, "state": state, "ledger": ledger}
    (folder / f"{s.rank}.json").write_text(json.dumps(found))
"""


def test_an_own_loop_commits_at_the_end_of_each_window(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    found: dict[int, list[dict[str, Any]]] = {}
    for workers in (1, 3):
        folder = tmp_path / str(workers)
        folder.mkdir()
        run = run_script(script, folder / "run", str(folder), "4", workers=workers)
        found[workers] = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(workers)]
    assert all(one == found[3][0] for one in found[3])  # after a merge all replicas are equal, buffers too
    one, three = found[1][0], found[3][0]
    per_epoch = -(-one["state"]["samples"] // 2 // 101)
    whole = [*range(4, per_epoch, 4), per_epoch]
    assert one["steps"] == [*range(1, 2 * per_epoch + 1)]
    assert three["steps"] == [*whole, *(per_epoch + end for end in whole)]
    assert three["ledger"] == one["ledger"] and three["ledger"]["lost"] == three["ledger"]["repeated"] == 0
    for name in ("samples", "norm.num_batches_tracked"):
        assert three["state"][name] == one["state"][name]
    assert [seen for _, seen in three["right"]] == [180.0] * len(three["right"]) and three["right"]
    parts = parts_done(run)
    assert sum(parts.values()) == 3 * 2 * per_epoch and parts[1] < 2 * per_epoch


LOOP = """
import torch, cordee
from torch import nn
model, data = nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 10)), cordee.data.digits().train
with cordee.session(plan="sync=local,local_steps=4") as s:
    model = s.prepare(model)
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = 0
    for batch in s.batches(data, batch=101):
        batches += 1
        output = model(batch.x)
        {before}
        s.backward(nn.functional.cross_entropy(output, batch.y))
        s.step(optimizer)
        {after}
"""


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("", "s.backward(model(batch.x).square().mean()); s.step(optimizer)", "had a second s.step"),
        ("if batches == 2: continue", "", "had no s.step"),
        ("if batches == 2: optimizer = first", "", "in the middle of a window, where workers cannot agree"),
        ("", "s.agree([torch.ones(1)])", "s.agree\\(\\) was called in the middle of a window"),
        ("", "s.agree(model)", "the model was to be measured or saved in the middle of a window"),
        ("", "break", "the loop over batches\\(\\) was left in the middle of a window"),
        ("", "if batches == 2: list(s.batches(data, batch=50))", "another loop over batches\\(\\) began in the middle"),
        ("if batches == 2: output = cordee.gather(output)", "", "workers compute parts of different steps"),
    ],
)
def test_what_cannot_be_done_between_merges_is_refused(before: str, after: str, message: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LOOP.format(before=before or "pass", after=after or "pass"))
    with pytest.raises(UsageError, match=message):
        run_script(script, tmp_path / "run", workers=2)


@pytest.mark.parametrize(
    ("job", "plan", "settings"),
    [
        ("gpt", "sync=local", {"tokens": True}),
        ("rows", "sync=local,local_steps=3", {}),
        ("cnn", "sync=local,local_steps=4,accumulate=2", {}),
        ("mlp", "sync=local,local_steps=4,share=sampled", {}),
    ],
)
def test_jobs_of_many_kinds(job: str, plan: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """Weights by tokens, sparse gradients, BatchNorm, micro-batches, sampled shares: samples come once, in order."""
    runs = [train(job, tmp_path / str(one), workers=one, plan=plan, **settings) for one in (1, 2)]
    assert_audited(runs[1], runs[0])
    np.testing.assert_allclose(runs[1].losses, runs[0].losses, rtol=0.5)  # which worker computed what is not given


def test_a_loss_that_compares_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="workers compute parts of different steps"):
        train("contrast", tmp_path / "run", workers=2, plan="sync=local")
