"""`cordee.predict` in one process; several workers are in tests/ranks/test_evaluation.py."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import cordee
from cordee.state.export import PROGRAM, WEIGHTS, save_model, save_program, trace_program
from cordee.state.naming import capture


def test_outputs_come_in_the_order_of_the_samples(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 10), nn.Dropout(0.9)).train()
    data = cordee.data.digits().test
    alone = cordee.predict(model, data, batch=7)
    fields = data.gather(torch.arange(len(data)).numpy())
    torch.testing.assert_close(alone, model[0](fields["x"]))
    assert model.training  # as it was before
    with cordee.session() as s:
        torch.testing.assert_close(cordee.predict(model, data, s), alone)
    torch.testing.assert_close(cordee.predict(model, (fields["x"].numpy(), fields["y"].numpy())), alone)


def test_a_loaded_model_predicts(tmp_path: Path) -> None:
    model = nn.Linear(64, 10)
    data = cordee.data.digits().test
    save_model(tmp_path / WEIGHTS, capture(model))
    save_program(tmp_path / PROGRAM, model, trace_program(model, (torch.zeros(3, 64),)))
    torch.testing.assert_close(cordee.predict(cordee.load(tmp_path), data), cordee.predict(model, data))
