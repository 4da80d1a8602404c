"""The preflight on a table of objectives with known truth: no wrong one accepted silently, no right one refused."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

import wrong_objectives  # noqa: F401  (enters its cases)
from cordee.core.errors import MixingError
from cordee.diagnose.preflight import check as check_module
from cordee.diagnose.preflight.check import preflight
from cordee.train.checks import subject_of
from cordee.train.job import Job
from objectives import CASES, Case

torch.set_num_threads(1)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def look(case: Case, device: str) -> list[str]:
    """Run the preflight, and see that it left no trace."""
    model = case.model().to(device)
    job = Job(model=lambda: model, objective=case.objective, optimizer=torch.optim.SGD, data=case.data, **case.fields)
    model.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    states = torch.get_rng_state(), torch.cuda.get_rng_state() if device == "cuda" else torch.zeros(1)
    others = np.random.get_state()[1].tobytes(), random.getstate()  # type: ignore[index, union-attr]
    attributes = {key: repr(value) for one in model.modules() for key, value in vars(one).items() if key[0] != "_"}
    try:
        return preflight(subject_of(job, model), job.data.train, lambda count: np.arange(count), device, largest=64)
    finally:
        now = model.state_dict()
        assert list(now) == list(before) and all(torch.equal(now[name], one) for name, one in before.items())
        assert torch.equal(states[0], torch.get_rng_state())
        assert device != "cuda" or torch.equal(states[1], torch.cuda.get_rng_state())
        assert others == (np.random.get_state()[1].tobytes(), random.getstate())  # type: ignore[index, union-attr]
        assert not any(module.training for module in model.modules())
        assert all(parameter.grad is None for parameter in model.parameters())
        now_attributes = {k: repr(v) for one in model.modules() for k, v in vars(one).items() if k[0] != "_"}
        assert now_attributes == attributes


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_said_of_an_objective(case: Case, device: str) -> None:
    if case.expected in ("right", "warned"):
        assert bool(look(case, device)) == (case.expected == "warned")
        return
    with pytest.raises(MixingError, match=case.expected):
        look(case, device)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_large_models_are_judged_alike_by_fewer_passes(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "LARGE", 0)
    test_what_is_said_of_an_objective(case, "cpu")


def test_the_table_is_large_and_its_names_differ() -> None:
    names: list[Any] = [case.name for case in CASES]
    wrong = [case for case in CASES if case.expected not in ("right", "warned")]
    assert len(names) == len(set(names)) >= 60
    assert len(wrong) >= 25
