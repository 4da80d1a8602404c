"""A worker is lost while the merge of a window is under way: what it did there, and since then, is done again."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cordee.core.events import Event, FailureEvent
from harness import Run, train
from replay import assert_audited, assert_replayed
from strike import Strikes

Reference = Callable[..., Run]
Acts = dict[int, dict[str, list[str]]]
PLAN = "sync=local,local_steps=4,merge=behind"
WINDOWS = [(1, 4), (5, 8), (9, 10), (11, 14), (15, 18), (19, 20)]
END = 7
"""The agreement at the end of the third window: on what the second one came to, whose merge was left behind."""


def lost(run: Run) -> list[int]:
    return [event["worker"] for event in run.of("failure")]


def redone(run: Run) -> list[tuple[int, int]]:
    """Steps and parts of former windows that were computed again."""
    return [(step, part) for one in run.of("window") for _, step, part in one["items"] if step < one["first"]]


def done_by(run: Run, worker: int, window: int) -> list[tuple[int, int]]:
    return [(step, part) for who, step, part in run.of("window")[window]["items"] if who == worker]


def assert_right(run: Run, alone: Run, **settings: Any) -> None:
    """Each sample counts once, and what was trained is what the record says; the last model is that of all workers."""
    assert [(window["first"], window["last"]) for window in run.of("window")] == WINDOWS[: len(run.of("window"))]
    assert_audited(run, alone)
    assert_replayed(run, "behind", **settings)


def struck(acts: Acts, folder: Path, *, workers: int = 3, plan: str = PLAN, **settings: Any) -> Run:
    words = folder / "words"
    words.mkdir()
    return train("behind", folder / "run", workers=workers, plan=plan, acts=json.dumps(acts), words=words, **settings)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("act", ["die", "halt"])
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize(
    ("place", "window"),
    [
        pytest.param("send-1", 0, id="between the agreement and what is sent"),
        pytest.param("sent-1", 0, id="when it is sent"),
        pytest.param("part-7", 1, id="in the middle of the next window"),
        pytest.param("sent-3", 2, id="in the next epoch"),
    ],
)
def test_lost_while_a_merge_is_under_way(
    place: str, window: int, workers: int, act: str, reference: Reference, tmp_path: Path
) -> None:
    run = struck({1: {place: [act]}}, tmp_path, workers=workers)
    assert lost(run) == [1]
    if place != "part-7":  # on a busy machine it may have computed fewer parts before
        assert sorted(redone(run)) == sorted(done_by(run, 1, window)) != []
        after = run.of("window")[window + 1]
        assert not after["behind"] and all(worker != 1 for worker, _, _ in after["items"])
    assert_right(run, reference("behind"))


def test_lost_before_the_agreement_at_a_windows_end(reference: Reference, tmp_path: Path) -> None:
    """Nothing of the second window has arrived for certain: it is done again within the third."""
    run = struck({1: {f"agree-{END}": ["die"]}, 0: {f"agree-{END}": ["lose"]}, 2: {f"agree-{END}": ["lose"]}}, tmp_path)
    assert lost(run) == [1] and not run.of("window")[2]["behind"]
    assert sorted(redone(run)) == sorted(done_by(run, 1, 1)) != [] and done_by(run, 1, 2) == []
    assert_right(run, reference("behind"))


def test_what_the_others_agreed_on_is_handed_over(reference: Reference, tmp_path: Path) -> None:
    """Worker 2 has what the second window came to, worker 0 has not: only the third is done again, in the fourth."""
    words = [f"agreed-{END}.2", f"lost-{END}.0"]
    run = struck({0: {f"agree-{END}": ["lose"]}, 1: {f"agreed-{END}": ["die", *words]}}, tmp_path)
    assert lost(run) == [1] and [window["behind"] for window in run.of("window")][:4] == [True, True, True, False]
    assert sorted(redone(run)) == sorted(done_by(run, 1, 2)) != []
    assert_right(run, reference("behind"))


@pytest.mark.parametrize("plan", [PLAN, "sync=local,local_steps=4"])
@pytest.mark.parametrize("place", [f"agreed-{END}", "begun-4"])
def test_all_that_know_of_an_agreement_are_lost(place: str, plan: str, reference: Reference, tmp_path: Path) -> None:
    """Also if the only one that had the result has asked for the next window already: it counts for nothing."""
    words = [f"lost-{END}.0", f"lost-{END}.2"]
    acts: Acts = {worker: {f"agree-{END}": ["lose"]} for worker in (0, 2)}
    run = struck({**acts, 1: {place: ["fall", *words]}}, tmp_path, plan=plan)
    assert lost(run) == [1] and not run.of("window")[2]["behind"] and done_by(run, 1, 2) == []
    assert sorted(redone(run)) == (sorted(done_by(run, 1, 1)) if plan == PLAN else []) and done_by(run, 1, 1)
    assert_right(run, reference("behind"))


@pytest.mark.parametrize("merge", ["wait", "behind"])
def test_the_end_of_a_window_that_was_told_before_a_loss(merge: str, reference: Reference, tmp_path: Path) -> None:
    """Workers regroup while they are told that a window is over; one is lost meanwhile: what it did is done again.

    Worker 2 is lost, and 0 does its part again. So the window is over, but 3 is lost before 0 regroups with 1 and 3.
    """
    words = tmp_path / "words"

    def listen(event: Event) -> None:
        if isinstance(event, FailureEvent) and event.worker == 3:
            (words / "gone").touch()

    acts: Acts = {
        0: {"part-2": ["wait", "ready-1.1", "ready-1.3"], "ready-1": ["wait", "gone"]},
        1: {"part-1": ["wait", "part-2.0"]},
        2: {"part-1": ["die", "asked-2.3"]},
        3: {"begun-1": ["fall", "ready-1.0"], "part-1": ["wait", "asked-2.0"]},
    }
    run = struck(acts, tmp_path, workers=4, plan=f"sync=local,local_steps=1,merge={merge}", listen=listen)
    assert lost(run) == [2, 3]
    assert {worker for worker, _, _ in run.of("window")[0]["items"]} == {0, 1}
    assert_audited(run, reference("behind"))
    assert_replayed(run, "behind")


@pytest.mark.parametrize(
    "acts",
    [
        pytest.param({1: {"sent-2": ["die"]}, 3: {"sent-2": ["die"]}}, id="two at once"),
        pytest.param({1: {"sent-2": ["die"]}, 3: {f"agree-{END}": ["die"]}}, id="the second when all meet again"),
        pytest.param({1: {"sent-2": ["die"]}, 0: {f"agreed-{END}": ["die"]}}, id="and the one that speaks for all"),
        pytest.param(
            {0: {"sent-1": ["die"]}, 1: {"send-2": ["die"]}, 3: {"begun-4": ["halt"]}}, id="one window after the other"
        ),
        pytest.param(
            {worker: {f"begun-{worker + 2}": ["die"]} for worker in (1, 2, 3)}, id="until one is left, which goes on"
        ),
    ],
)
def test_several_are_lost(acts: Acts, reference: Reference, tmp_path: Path) -> None:
    run = struck(acts, tmp_path, workers=4)
    assert sorted(lost(run)) == sorted(acts)
    assert redone(run)
    assert_right(run, reference("behind"))


@pytest.mark.thinned(5)
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("agreement", [6, 7, 8])
def test_lost_while_buffers_are_merged(agreement: int, workers: int, reference: Reference, tmp_path: Path) -> None:
    """After a window's end, before its merge begins; one worker that is left alone still does what was lost again."""
    run = struck({1: {f"agree-{agreement}": ["die"]}}, tmp_path, workers=workers, batchnorm=True)
    assert lost(run) == [1]
    assert sorted(redone(run)) == sorted(done_by(run, 1, 0)) != []
    assert_right(run, reference("behind", batchnorm=True), batchnorm=True)


def test_what_is_done_again_leaves_buffers_alone(reference: Reference, tmp_path: Path) -> None:
    run = struck({1: {"sent-1": ["die"]}}, tmp_path, batchnorm=True)
    assert redone(run)
    assert int(run.tensors["body.1.num_batches_tracked"]) == 20
    assert_right(run, reference("behind", batchnorm=True), batchnorm=True)


@pytest.mark.parametrize("outer", [False, True])
def test_a_codec_loses_nothing_of_the_others(outer: bool, reference: Reference, tmp_path: Path) -> None:
    """What was under way is void, and with it what the codec left out of it."""
    plan = f"{PLAN},compress=int8" + ",outer=nesterov" * outer
    run = struck({1: {"sent-3": ["die"]}}, tmp_path, plan=plan)
    assert redone(run)
    settings = {"outer_lr": 0.7, "outer_momentum": 0.9} if outer else {}
    assert_right(run, reference("behind"), codec="int8", **settings)


def struck_at_random(seed: int, folder: Path) -> Run:
    """A run of three of which one worker, drawn at random, is struck at a random instant."""
    draw = random.Random(seed)
    victim, step, delay = draw.randrange(3), draw.choice([4, 8, 10, 14]), draw.uniform(0, 0.06)
    number = (signal.SIGKILL, signal.SIGSTOP)[seed % 2]
    strike = Strikes(folder / "struck", (step, (f"worker {victim}",), number, delay))
    run = train("behind", folder / "run", workers=3, plan=PLAN, listen=strike, delay=0.005, **strike.settings)
    strike.assert_done()
    assert lost(run) == [victim]
    return run


@pytest.mark.parametrize("seed", range(4))
def test_random_instants(seed: int, reference: Reference, tmp_path: Path) -> None:
    assert_right(struck_at_random(seed, tmp_path), reference("behind"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 44))
def test_forty_random_instants(seed: int, reference: Reference, tmp_path: Path) -> None:
    assert_right(struck_at_random(seed, tmp_path), reference("behind"))
