"""Faults at random, by their seeds: a short form of `benchmarks/chaos.py`, and what it draws."""

from __future__ import annotations

import pytest

from trials.drawn import CASES, FIRST, LAST, LATE, draw
from trials.judged import Trials

CHOSEN = {"allreduce, replaced": 35, "two hosts": 20, "server, replaced": 23, "exact": 28}
"""Seeds with faults of several kinds, and with runs that are ended and resumed."""


@pytest.fixture(scope="module")
def trials(warm: int, tmp_path_factory: pytest.TempPathFactory) -> Trials:
    return Trials(tmp_path_factory.mktemp("trials"))


def test_a_seed_draws_the_same_run_and_faults() -> None:
    drawn = [draw(seed) for seed in range(500)]
    assert drawn == [draw(seed) for seed in range(500)]
    assert {trial.case for trial in drawn} == set(CASES)
    faults = [fault for trial in drawn for fault in trial.faults]
    assert all(len(fault.roles) == len(fault.picks) for fault in faults)
    early, late = ([fault for fault in faults if fault.step in steps] for steps in ([0], range(*LATE)))
    assert early and late and all(FIRST <= fault.step < LAST for fault in faults if fault not in early + late)
    assert {fault.deed for fault in faults} == {"kill", "pause", "cut", "scale"}
    roles = {role for fault in faults for role in fault.roles}
    assert roles >= {role for case in CASES for role in case.roles} | {"all workers", "first launcher"}
    assert max(len(fault.roles) for fault in faults) == 3


@pytest.mark.parametrize(("name", "seed"), CHOSEN.items())
def test_a_run_is_as_undisturbed(name: str, seed: int, trials: Trials) -> None:
    outcome = trials.run(draw(seed, tuple(case for case in CASES if case.name == name)))
    assert outcome.struck and outcome.wrong == (), outcome
