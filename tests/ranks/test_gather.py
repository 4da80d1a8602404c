"""`cordee.gather`: losses that compare samples with each other are those of one process, on any number of workers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordee.core.errors import UsageError
from harness import Run, assert_same, run_script, train

Reference = Callable[..., Run]

LOOP = """
import json, sys
from pathlib import Path
import numpy as np
import torch
from torch import nn
import cordee

torch.manual_seed(0)
model, critic = nn.Linear(5, 3).double(), nn.Linear(3, 1).double()
x = np.random.default_rng(0).normal(size=(23, 5))
kinds = [torch.int64, torch.int32, torch.bool, torch.bfloat16, torch.float16, torch.float32, torch.complex64]
losses, refused = [], []

with cordee.session() as s:
    model, critic = s.prepare(model), s.prepare(critic)
    outside = torch.ones(4)
    assert cordee.gather(outside) is outside
    first, second = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(critic.parameters(), lr=0.1)
    for batch in s.batches(cordee.data.arrays(x).train, batch=10, epochs=2):
        ids = cordee.gather(torch.from_numpy(batch.ids))
        assert sorted(ids.tolist()) == sorted(set(ids.tolist())) and len(ids) == (3 if batch.step == 2 else 10)
        for kind in kinds:
            rows = torch.stack([(ids % 3).to(kind), ids.to(kind)], dim=1)
            mine = rows[[ids.tolist().index(one) for one in batch.ids]]
            assert torch.equal(cordee.gather(mine), rows) and cordee.gather(mine).dtype == kind
        assert cordee.gather(torch.ones(len(batch), 0)).shape == (len(ids), 0)
        z = model(batch.x)
        for wrong in (z[:0], torch.ones(()), torch.cat([z, z])):
            try:
                cordee.gather(wrong)
            except cordee.errors.UsageError as error:
                refused.append(str(error))
        whole = cordee.gather(z)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            narrow = cordee.gather(z.float() @ torch.ones(3, 2))
        assert s.size == 1 or narrow.dtype == torch.bfloat16
        distance = (whole[:, None] - whole).square().sum(-1)
        s.backward((-distance).exp().mean() + narrow.float().mean() * 0)
        s.step(first)
        s.backward((critic(whole.detach()) @ critic(cordee.gather(z.detach())).T).mean())
        s.step(second)
        losses.append(s.last.loss)
    assert cordee.gather(outside) is outside
    state = [parameter.tolist() for one in (model, critic) for parameter in one.parameters()]
    told = {"losses": losses, "state": state, "refused": refused[:3]}
    (Path(sys.argv[1]) / f"{s.size}-{s.rank}.json").write_text(json.dumps(told))
"""

UNLIKE = """
import numpy as np
import torch
import cordee

with cordee.session() as s:
    for batch in s.batches(cordee.data.arrays(np.ones((8, 2))).train, batch=8):
        try:
            cordee.gather(torch.ones(len(batch), 2 + s.rank))
        except cordee.errors.UsageError as error:
            assert "not given the same on all workers" in str(error)
        else:
            raise AssertionError("rows of two widths were gathered")
"""


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("kind", "workers", "plan", "settings"),
    [
        pytest.param("nt_xent", 2, "auto", {}, id="NT-Xent"),
        pytest.param("nt_xent", 3, "share=sampled,backend=gloo", {}, id="NT-Xent, shares drawn at random, sockets"),
        pytest.param("triplet", 3, "proportions=5:3:2", {}, id="triplets mined in the batch, with a term of the share"),
        pytest.param("barlow", 2, "proportions=9:1", {"clip": 0.05}, id="correlation, clipped"),
        pytest.param("barlow", 3, "proportions=0:1:3", {}, id="correlation, an empty share"),
        pytest.param("clip", 3, "proportions=1:8:1", {"weighed": True}, id="two towers, shares that weigh nothing"),
    ],
)
def test_a_loss_over_the_global_batch(
    kind: str, workers: int, plan: str, settings: dict[str, Any], reference: Reference, tmp_path: Path
) -> None:
    run = train("contrast", tmp_path / "run", workers=workers, plan=plan, kind=kind, **settings)
    assert_same(run, reference("contrast", kind=kind, **settings), loss=1e-10, tensor=1e-8)


def test_a_loop_of_ones_own(warm: int, tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    for workers in (1, 4):  # the short batch has 3 samples
        run_script(tmp_path / "loop.py", tmp_path / f"run-{workers}", str(tmp_path), workers=workers)
    alone, *others = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("1-0", "4-0", "4-3"))
    for other in others:
        np.testing.assert_allclose(other["losses"], alone["losses"], rtol=1e-10)
        for one, same in zip(alone["state"], other["state"], strict=True):
            np.testing.assert_allclose(same, one, rtol=0, atol=1e-8)
    assert len(alone["refused"]) == 3
    assert "(20, 3) for a share of 10 samples" in alone["refused"][2] and "z.chunk(2)" in alone["refused"][2]


def test_what_cannot_be_gathered_is_refused(warm: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cordee.gather needs the whole global batch .* accumulate=3"):
        train("contrast", tmp_path / "parts", workers=2, plan="accumulate=3")
    (tmp_path / "unlike.py").write_text(UNLIKE)
    run_script(tmp_path / "unlike.py", tmp_path / "unlike", workers=2)


@pytest.mark.parametrize(
    ("workers", "plan", "falls", "calls"),
    [
        pytest.param(3, "auto", 1, 1, id="in the forward pass"),
        pytest.param(2, "backend=gloo", 0, 2, id="in the backward pass"),
    ],
)
def test_a_worker_dies_between_two_gathers(
    workers: int, plan: str, falls: int, calls: int, reference: Reference, tmp_path: Path
) -> None:
    run = train("contrast", tmp_path / "run", workers=workers, plan=plan, falls=falls, calls=calls)
    assert [event["worker"] for event in run.of("failure")] == [falls]
    assert_same(run, reference("contrast"), loss=1e-10, tensor=1e-8)
