"""Law 3 where it is hardest: the hand-over of a result is itself struck, by a second loss at an exact instant."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import Run, assert_same, train

Reference = Callable[..., Run]
Acts = dict[int, dict[str, list[str]]]
AT = 8
"""The agreement that is struck: the eighth step."""


def one_dies_ahead(dies: int, agreed: list[int], lost: list[int], at: int = AT) -> Acts:
    """`lost` do not get the result, `agreed` do, and then `dies` dies, so that the result has to be handed over."""
    words = [*(f"agreed-{at}.{worker}" for worker in agreed), *(f"lost-{at}.{worker}" for worker in lost)]
    return {**{worker: {f"agree-{at}": ["lose"]} for worker in lost}, dies: {f"agreed-{at}": ["die", *words]}}


def struck(acts: Acts, second: Acts, folder: Path, *, workers: int, plan: str = "auto", **settings: Any) -> Run:
    """A run in which the `second` acts follow; the words that its workers leave lie in `folder`."""
    both = {worker: acts.get(worker, {}) | second.get(worker, {}) for worker in {**acts, **second}}
    words = folder / "words"
    words.mkdir()
    return train("placed", folder / "run", workers=workers, plan=plan, acts=json.dumps(both), words=words, **settings)


def lost(run: Run) -> list[int]:
    return [event["worker"] for event in run.of("failure")]


CLOSED: dict[str, Any] = {"admits": False, "newcomers": [], "left": []}
"""Of a generation that lets no other worker in."""


def told(folder: Path, generation: int) -> list[dict[str, Any]]:
    """What the workers of a generation were told, each once if they were told the same."""
    found = [json.loads(path.read_text()) for path in (folder / "words").glob(f"go-{generation}.*")]
    for go in found:
        del go["recorded"]  # how far the record has come is a matter of time
    return [go for place, go in enumerate(found) if go not in found[:place]]


@pytest.mark.parametrize(
    ("second", "giver", "backend"),
    [
        pytest.param({0: {"sums-2": ["die"]}}, 2, "auto", id="the giver, before the group is formed"),
        pytest.param(
            {0: {"formed-2": ["die", "formed-2.1", "formed-2.2"]}}, 2, "gloo", id="the giver, before it gives"
        ),
        pytest.param(
            {0: {"give-2-2": ["die", "give-2-2.1", "give-2-2.2"]}}, 2, "auto", id="the giver, between two tensors"
        ),
        pytest.param(
            {2: {"layers-2": ["die"]}},
            0,
            "auto",
            id="another that has it, before the group is formed",
            marks=pytest.mark.slow,
        ),
        pytest.param({2: {"give-2-2": ["die"]}}, 0, "gloo", id="another that has it, between two tensors"),
        pytest.param({1: {"give-2-2": ["die"]}}, None, "auto", id="the one that is behind, between two tensors"),
    ],
)
def test_a_second_worker_dies_in_the_hand_over(
    second: Acts, giver: int | None, backend: str, reference: Reference, tmp_path: Path
) -> None:
    """Workers 0 and 2 have the result, 1 has not, 3 is dead; 0 is to give it, and somebody dies meanwhile."""
    plan = f"backend={backend},bucket_mb=0.01"
    run = struck(one_dies_ahead(3, [0, 2], [1]), second, tmp_path, workers=4, plan=plan)
    (victim,) = second
    left = [worker for worker in range(3) if worker != victim]
    assert lost(run) == [3, victim]
    assert told(tmp_path, 2) == [{"generation": 2, "members": [0, 1, 2], "target": AT + 1, "giver": 0, **CLOSED}]
    assert told(tmp_path, 3) == [{"generation": 3, "members": left, "target": AT + 1, "giver": giver, **CLOSED}]
    assert_same(run, reference("placed"))


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("nesterov", marks=pytest.mark.slow)])
def test_the_giver_dies_when_one_of_three_has_it(optimizer: str, reference: Reference, tmp_path: Path) -> None:
    """Only worker 0 has the result; it reaches worker 2, which hands over what it was handed."""
    second: Acts = {0: {"give-2-2": ["fall", "handed-2.2"]}, 3: {"give-2-1": ["wait", "broken"]}}
    ahead = one_dies_ahead(4, [0], [1, 2, 3])
    run = struck(ahead, second, tmp_path, workers=5, optimizer=optimizer)
    assert lost(run) == [4, 0]
    assert told(tmp_path, 3) == [{"generation": 3, "members": [1, 2, 3], "target": AT + 1, "giver": 2, **CLOSED}]
    assert_same(run, reference("placed", optimizer=optimizer))


@pytest.mark.parametrize(
    ("optimizer", "settings", "at"),
    [
        ("nesterov", {}, 8),
        ("nesterov", {}, 1),  # whether all have the same model
        ("nesterov", {}, 4),  # the first step, when nobody knows yet what the optimizer does
        pytest.param("nesterov", {"clip": 0.05}, 8, marks=pytest.mark.slow),
        pytest.param("adagrad", {}, 8, marks=pytest.mark.slow),
        pytest.param("decayed", {}, 8, marks=pytest.mark.slow),
        pytest.param("adam", {}, 8, marks=pytest.mark.slow),
        pytest.param("careless", {}, 8, marks=pytest.mark.slow),
        ("careless", {"clip": 0.05}, 1),
        ("fading", {}, 8),  # its first write changes no number
        ("oldstyle", {}, 8),
        ("nesterov", {"sets": 1}, 8),
        ("nesterov", {"sets": 1}, 4),
        ("adamw", {"sets": 1}, 8),
        ("careless", {"sets": 1}, 8),
        pytest.param("bounded", {}, 8, marks=pytest.mark.slow),
    ],
)
def test_what_is_handed_over_is_what_was_agreed_on_and_not_what_the_optimizer_left(
    optimizer: str, settings: dict[str, Any], at: int, reference: Reference, tmp_path: Path
) -> None:
    """The giver has made its update already when it is asked; the one behind makes its own from the same gradient."""
    ahead = one_dies_ahead(2, [0], [1], at)
    run = struck(ahead, {}, tmp_path, workers=3, plan="bucket_mb=0.01", optimizer=optimizer, **settings)
    assert lost(run) == [2]
    assert [go["giver"] for go in told(tmp_path, 2)] == [0]
    one_process = {name: value for name, value in settings.items() if name != "sets"}
    assert_same(run, reference("placed", optimizer=optimizer, **one_process))
