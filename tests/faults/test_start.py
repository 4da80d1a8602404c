"""A worker dies before the training has begun: while groups are formed, and while weights are given to all."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordee.core.errors import CheckpointError
from cordee.group.wire import Address
from cordee.runtime.coordinator.hub import Hub
from harness import JOBS, Run, assert_same, run_script, train

Reference = Callable[..., Run]
Acts = dict[int, dict[str, list[str]]]
SAID = [f"said-1-1.{worker}" for worker in range(3)]
"""Everybody has said where it is."""


def lost(run: Run) -> list[int]:
    return [event["worker"] for event in run.of("failure")]


# ------------------------------------------------------------- forming a group


def formed(folder: Path, acts: Acts, *, workers: int, form_s: str = "") -> dict[int, dict[str, Any]]:
    """What the survivors tell of a training on a team of their own, whose first generation is struck."""
    folder.mkdir()
    token = secrets.token_hex(32)
    hub = Hub(Address("127.0.0.1", 0, token), expected=workers)
    try:
        words = [str(folder), str(hub.address.port), token, json.dumps(acts) if acts else "", *form_s.split()]
        run_script(JOBS / "forming.py", folder / "run", *words, workers=workers)
    finally:
        hub.close()
    return {int(path.suffix[1:]): json.loads(path.read_text()) for path in folder.glob("told.*")}


@pytest.fixture(scope="module")
def formed_alone(warm: int, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return formed(tmp_path_factory.mktemp("forming") / "alone", {}, workers=1)[0]


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("acts", "generation"),
    [
        pytest.param({1: {"sums-1": ["die"]}}, 2, id="before it says where it is"),
        pytest.param({0: {"sums-1": ["die"]}}, 2, id="the first, before it says where it is"),
        pytest.param({1: {"said-1-1": ["die", *SAID]}}, 2, id="when it has said where it is"),
        pytest.param({0: {"said-1-1": ["halt", *SAID]}}, 2, id="the first, stopped before it reaches the others"),
        pytest.param({2: {"said-1-1": ["halt", *SAID]}}, 2, id="the last, stopped before it reaches the others"),
        pytest.param({2: {"layers-1": ["die"]}}, 2, id="between the two groups"),
        pytest.param({0: {"layers-1": ["die", "layers-1.1", "layers-1.2"]}}, 2, id="the first, between the two groups"),
        pytest.param({0: {"say-1-5": ["die"]}}, 2, id="the first, before it says where its memory is"),
        pytest.param({2: {"say-1-5": ["die"]}}, 2, id="the last, before it says that it has found it"),
        pytest.param({1: {"formed-1": ["die", "formed-1.0", "formed-1.2"]}}, 2, id="before the first collective"),
        pytest.param({1: {"sums-1": ["die"]}, 2: {"layers-2": ["die"]}}, 3, id="another, in the next generation"),
    ],
)
def test_a_group_breaks_while_it_is_formed(
    acts: Acts, generation: int, formed_alone: dict[str, Any], tmp_path: Path
) -> None:
    """The others form the next one, though some of them already wait where no socket can be shut."""
    told = formed(tmp_path / "three", acts, workers=3)
    left = [worker for worker in range(3) if worker not in acts]
    assert sorted(told) == left
    for one in told.values():
        assert (one["members"], one["generation"]) == (left, generation)
        assert one["ledger"] == formed_alone["ledger"]
        for name, value in formed_alone["state"].items():
            np.testing.assert_allclose(one["state"][name], value, rtol=0, atol=1e-9, err_msg=name)


def test_a_group_that_does_not_form_is_formed_anew(formed_alone: dict[str, Any], tmp_path: Path) -> None:
    """As when a stranger takes a peer's place at gloo's port: nobody is lost, and nobody waits for the deadline."""
    acts: Acts = {0: {"layers-1": ["wait", "broken"]}}
    told = formed(tmp_path / "three", acts, workers=3, form_s="2")
    assert [(one["members"], one["generation"]) for one in told.values()] == [([0, 1, 2], 2)] * 3
    for name, value in formed_alone["state"].items():
        np.testing.assert_allclose(told[2]["state"][name], value, rtol=0, atol=1e-9, err_msg=name)


def test_what_is_said_late_is_not_taken_for_the_next_generation(formed_alone: dict[str, Any], tmp_path: Path) -> None:
    """A thread of worker 0 that forms the broken group says where it was when the next group is formed already."""
    acts: Acts = {
        0: {"say-1-1": ["wait", "go-2.0"], "say-2-1": ["wait", "said-1-1.0"]},
        1: {"sums-1": ["die", "say-1-1.0"]},
    }
    told = formed(tmp_path / "three", acts, workers=3)
    assert [(told[worker]["members"], told[worker]["generation"]) for worker in (0, 2)] == [([0, 2], 2)] * 2
    for name, value in formed_alone["state"].items():
        np.testing.assert_allclose(told[2]["state"][name], value, rtol=0, atol=1e-9, err_msg=name)


# ------------------------------------------------------------- giving weights to all


def begun(folder: Path, acts: Acts, *, workers: int = 3, resume: bool = False, **settings: Any) -> Run:
    words = folder / "words"
    words.mkdir()
    told = {"acts": json.dumps(acts), "words": words, **settings}
    return train("placed", folder / "run", workers=workers, resume=resume, **told)


@pytest.fixture(scope="module")
def weights(reference: Reference) -> str:
    return str(reference("placed", seed=5).out / "model.safetensors")


@pytest.mark.parametrize("place", ["share-1", "cast-1-3"])
def test_the_worker_that_read_start_from_dies_before_all_have_the_weights(
    place: str, weights: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"start_from was lost before all workers had it: start again"):
        begun(tmp_path, {0: {place: ["die"]}}, start_from=weights)
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize("number", [0, 1])
def test_the_worker_that_read_start_from_dies_when_one_of_two_has_the_weights(
    number: int, weights: str, reference: Reference, tmp_path: Path
) -> None:
    """Refused, or the same as in one process: both are right; other weights are not.

    Or when one of two knows that they differ, which is agreed on first.
    """
    acts: Acts = {
        0: {f"agreed-{number}": ["die", f"agreed-{number}.1", f"lost-{number}.2"]},
        2: {f"agree-{number}": ["lose"]},
    }
    try:
        run = begun(tmp_path, acts, start_from=weights)
    except CheckpointError as error:
        assert "start again" in str(error)
    else:
        assert_same(run, reference("placed", start_from=weights))


def test_a_model_is_handed_over_as_it_was_given_to_all(reference: Reference, tmp_path: Path) -> None:
    """Worker 1 did not get it; worker 0 goes on to its first step, whose forward pass changes buffers."""
    acts: Acts = {1: {"agree-0": ["lose"]}, 2: {"agreed-0": ["die", "agreed-0.0", "lost-0.1"]}}
    run = begun(tmp_path, acts)
    assert lost(run) == [2]
    assert_same(run, reference("placed"))


def test_the_worker_that_read_start_from_dies_when_all_have_the_weights(
    weights: str, reference: Reference, tmp_path: Path
) -> None:
    run = begun(tmp_path, {0: {"shared-1": ["die", "shared-1.1", "shared-1.2"]}}, start_from=weights)
    assert lost(run) == [0]
    assert_same(run, reference("placed", start_from=weights))
    assert run.losses[0] < 0.7 * reference("placed", seed=5).losses[0]  # these are the trained weights


@pytest.fixture(scope="module")
def stopped(warm: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after five steps."""
    return train("placed", tmp_path_factory.mktemp("stopped") / "run", workers=2, stop_steps=5).out


@pytest.mark.parametrize(("workers", "place"), [(3, "share-1"), (2, "share-2"), (3, "share-3"), (3, "cast-3-4")])
def test_the_worker_that_read_the_checkpoint_dies_before_all_have_it(
    workers: int, place: str, stopped: Path, reference: Reference, tmp_path: Path
) -> None:
    """The next one reads it."""
    shutil.copytree(stopped, tmp_path / "run")
    run = begun(tmp_path, {0: {place: ["die"]}}, workers=workers, resume=True)
    assert lost(run) == [0]
    assert_same(run, reference("placed"))


def test_the_worker_that_read_the_checkpoint_dies_when_one_of_two_has_a_part(
    stopped: Path, reference: Reference, tmp_path: Path
) -> None:
    """Of the table worker 2 knows nothing when worker 0 dies; worker 1 hands it over, and both begin anew alike."""
    shutil.copytree(stopped, tmp_path / "run")
    acts: Acts = {0: {"agreed-2": ["die", "agreed-2.1", "lost-2.2"]}, 2: {"agree-2": ["lose"]}}
    run = begun(tmp_path, acts, resume=True)
    assert lost(run) == [0]
    assert_same(run, reference("placed"))


def test_the_worker_that_read_the_checkpoint_dies_when_all_have_it(
    stopped: Path, reference: Reference, tmp_path: Path
) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    run = begun(tmp_path, {0: {"shared-3": ["die", "shared-3.1", "shared-3.2"]}}, resume=True)
    assert lost(run) == [0]
    assert_same(run, reference("placed"))


def test_start_from_plays_no_part_in_a_resume(
    weights: str, stopped: Path, reference: Reference, tmp_path: Path
) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    acts: Acts = {0: {"shared-3": ["die", "shared-3.1", "shared-3.2"]}}
    assert_same(begun(tmp_path, acts, resume=True, start_from=weights), reference("placed"))


def test_a_sharing_ends_on_nobody_before_all_take_part(stopped: Path, reference: Reference, tmp_path: Path) -> None:
    """Worker 3 comes late, worker 1 dies: those whose part was done must not be two agreements ahead of worker 3."""
    shutil.copytree(stopped, tmp_path / "run")
    acts: Acts = {1: {"share-1": ["fall", "share-1.0", "share-1.2"]}, 3: {"share-1": ["wait", "broken"]}}
    run = begun(tmp_path, acts, workers=4, resume=True)
    assert lost(run) == [1]
    go = json.loads((tmp_path / "words" / "go-2.3").read_text())
    expected = {"generation": 2, "members": [0, 2, 3], "target": 1, "giver": None}
    assert go == {**expected, "admits": False, "newcomers": [], "left": [], "recorded": -1}
    assert_same(run, reference("placed"))
