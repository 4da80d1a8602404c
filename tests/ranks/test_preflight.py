"""The preflight on several workers: each does a part of it, and all know what was found."""

from __future__ import annotations

from pathlib import Path

import pytest

from cordee.core.errors import MixingError, ModelError
from harness import run_script, train


def test_workers_share_the_passes(warm: int, tmp_path: Path) -> None:
    counts = {}
    for workers in (1, 3):
        marks = tmp_path / f"marks{workers}"
        marks.mkdir()
        train("drawing", tmp_path / f"run{workers}", workers=workers, marks=marks)
        counts[workers] = sorted(len(path.read_text()) for path in marks.iterdir())
    assert len(counts[3]) == 3
    assert counts[3][-1] < 0.75 * counts[1][0]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_contrastive_loss_with_noise_is_refused_by_all(workers: int, warm: int, tmp_path: Path) -> None:
    with pytest.raises(MixingError, match=r"(?s)not the mean of its parts.*cordee\.gather"):
        train("drawing", tmp_path / "run", workers=workers, kind="contrast")


def test_an_error_in_one_workers_part_is_told_in_the_users_words(warm: int, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="seven is too much"):
        train("drawing", tmp_path / "run", workers=3, kind="fails")


def test_a_worker_that_dies_in_its_part_is_replaced(warm: int, tmp_path: Path) -> None:
    run = train("drawing", tmp_path / "run", workers=3, kind="dies")
    assert [event["workers"] for event in run.of("regroup")] == [[0, 2]]
    assert (run.result["steps"], run.result["samples"]) == (1, 64)


LOOP = """
import torch, cordee
from torch import nn
torch.manual_seed(0)
with cordee.session() as s:
    model = s.prepare(nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def objective(batch):
        out = model(batch.x + 0.1 * torch.randn_like(batch.x))
        return {loss}
    for batch in s.batches(cordee.data.digits().train, batch=64, epochs=1):
        if (0 if s.last is None else s.last.steps) in {checks}:
            s.check(objective, batch)
        s.backward(objective(batch))
        s.step(optimizer)
        s.wish.stop = s.last.steps > 2
"""


def test_an_own_loop_checks_its_objective_and_trains_as_without_it(warm: int, tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    right, wrong = "nn.functional.cross_entropy(out, batch.y)", "(out @ out.T).square().mean()"
    losses = []
    for checks in ((), (0, 2)):
        script.write_text(LOOP.format(loss=right, checks=checks))
        losses.append(run_script(script, tmp_path / f"right{len(checks)}", workers=2).losses)
    assert losses[0] == losses[1] and len(losses[0]) > 2
    script.write_text(LOOP.format(loss=wrong, checks=(0,)))
    for workers in (1, 2):
        with pytest.raises(MixingError, match=r"not the mean of its parts"):
            run_script(script, tmp_path / f"wrong{workers}", workers=workers)
