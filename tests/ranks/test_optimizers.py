"""What the job's optimizer was given, and what it asks for when a run goes on."""

from __future__ import annotations

from pathlib import Path

from harness import train

JOB = """
import torch
from torch import nn
import cordee

def groups(params, left_out, decay):
    wide = {"params": [one for one in params if one.ndim > 1], "weight_decay": decay}
    narrow = {"params": [one for one in params if one.ndim < 2], "weight_decay": 0.0}
    return torch.optim.AdamW([wide] if left_out else [wide, narrow], lr=0.1, betas=(0.9, 0.99))

def job(left_out: bool = False, decay: float = 0.1, epochs: int = 1) -> cordee.Job:
    return cordee.Job(model=lambda: nn.Sequential(nn.Linear(64, 10), nn.LayerNorm(10)), data=cordee.data.digits(),
                      loss=nn.functional.cross_entropy, batch=500, epochs=epochs,
                      optimizer=lambda params: groups(params, left_out, decay))
"""


def test_groups_that_are_made_in_two_turns_and_what_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    whole = train(tmp_path / "job.py", tmp_path / "whole")
    assert not whole.of("warning") and (whole.tensors["1.weight"] != 1).any(), "the second group is trained"
    part = train(tmp_path / "job.py", tmp_path / "part", left_out=True)
    assert (part.tensors["1.weight"] == 1).all()
    assert [event["message"] for event in part.of("warning")] == [
        "the optimizer was not given 0.bias, 1.weight, 1.bias: they stay as they are"
    ]


def test_other_settings_of_a_run_that_goes_on_are_told(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    train(tmp_path / "job.py", tmp_path / "run")
    for decay, told in (
        (0.1, []),
        (0.5, ["the job asks for weight_decay 0.5, but the run goes on with weight_decay 0.1"]),
    ):
        run = train(tmp_path / "job.py", tmp_path / "run", resume=True, decay=decay, epochs=2 if not told else 3)
        assert [event["message"].partition(", which")[0] for event in run.of("warning")] == told
