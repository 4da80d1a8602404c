"""Must show 3: a worker dies or is stopped, anywhere; the run ends normally on the others, as in one process."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cordee.core.events import FailureEvent
from harness import JOBS, Run, assert_same, distance, run_script, train
from strike import Strikes

Reference = Callable[..., Run]
STEPS = 30
"""Two epochs of 15."""


def lost(run: Run) -> list[int]:
    return [event["worker"] for event in run.of("failure")]


def test_a_dataset_that_draws_and_is_for_one_thread_at_a_time(reference: Reference, tmp_path: Path) -> None:
    """The others read ahead for three when one dies, and go on as one process does, noise of the samples included."""
    run = train("noisy", tmp_path / "run", workers=3, dies=1)
    assert lost(run) == [1]
    assert_same(run, reference("noisy"))


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "fate",
    [
        "1:start:0",
        "0:start:0",
        "2:forward:0",
        "0:forward:9",
        "1:backward:9",
        "0:backward:10:SIGSTOP",
        "0:update:9",
        "1:update:9:SIGSTOP",
        "2:after:10",
        "0:after:11",
        "1:validation:15",
        "0:validation:15:SIGSTOP",
        "0:validation:15",
        "2:forward:29",
        "0:update:29",
        "0:after:30",
        "1:test:30",
        "0:test:30",
        "1:end:30",
        "0:end:30:SIGSTOP",
    ],
)
def test_a_worker_ends_at_every_place(fate: str, reference: Reference, tmp_path: Path) -> None:
    run = train("steady", tmp_path / "run", workers=3, fate=fate, save_steps=5)
    assert lost(run) == [int(fate[0])]
    assert run.result["failures"] == 1
    assert_same(run, reference("steady"))


@pytest.mark.parametrize(
    "fate",
    [
        pytest.param("1:forward:7,2:forward:7", id="two at once"),
        pytest.param("0:update:8,1:forward:9", id="one after the other"),
        pytest.param("0:validation:15,2:validation:15", id="two in evaluation"),
        pytest.param("0:end:30,1:end:30,2:end:30", id="the last but one at the end"),
        pytest.param("1:start:0,3:forward:0:SIGSTOP", id="two before the first step"),
    ],
)
def test_several_workers_end(fate: str, reference: Reference, tmp_path: Path) -> None:
    run = train("steady", tmp_path / "run", workers=4, fate=fate)
    assert sorted(lost(run)) == sorted(int(one[0]) for one in fate.split(","))
    assert run.result["failures"] == len(fate.split(","))
    assert_same(run, reference("steady"))


@pytest.mark.parametrize("seed", range(3))
def test_one_dies_while_the_others_regroup(seed: int, reference: Reference, tmp_path: Path) -> None:
    """The second blow falls within the tenth of a second in which the first one is being dealt with."""
    delay = random.Random(seed).uniform(0.0, 0.08)
    failed = (lambda event: isinstance(event, FailureEvent), ("worker 2",), signal.SIGKILL, delay)
    strike = Strikes(tmp_path / "struck", failed)
    run = train("steady", tmp_path / "run", workers=4, fate="1:forward:7", listen=strike, **strike.settings)
    strike.assert_done()
    assert sorted(lost(run)) == [1, 2]
    assert_same(run, reference("steady"))


def struck_at_random(seed: int, out: Path) -> Run:
    """A run of three of which one worker, drawn at random, is struck at a random instant."""
    draw = random.Random(seed)
    victim, step, delay = draw.randrange(3), draw.randrange(1, STEPS - 14), draw.uniform(0, 0.02)
    number = (signal.SIGKILL, signal.SIGSTOP)[seed % 2]
    strike = Strikes(out / "struck", (step, (f"worker {victim}",), number, delay))
    run = train("steady", out / "run", workers=3, save_steps=4, listen=strike, **strike.settings)
    strike.assert_done()
    assert lost(run) == [victim]
    return run


@pytest.mark.parametrize("seed", range(4))
def test_random_instants(seed: int, reference: Reference, tmp_path: Path) -> None:
    assert_same(struck_at_random(seed, tmp_path), reference("steady"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 54))
def test_fifty_random_instants(seed: int, reference: Reference, tmp_path: Path) -> None:
    assert_same(struck_at_random(seed, tmp_path), reference("steady"))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("fate", ["0:forward:9", "1:backward:9", "2:update:14"])
@pytest.mark.parametrize(
    ("plan", "settings"),
    [
        pytest.param("accumulate=3", {"batchnorm": False}, id="accumulation"),
        pytest.param("share=sampled,bucket_mb=0.01", {}, id="many buckets"),
        pytest.param("proportions=1:1:0", {"weighed": True}, id="weights and an empty share"),
    ],
)
def test_whatever_the_plan(
    plan: str, settings: dict[str, Any], fate: str, reference: Reference, tmp_path: Path
) -> None:
    run = train("steady", tmp_path / "run", workers=3, plan=plan, fate=fate, delay=0.0, **settings)
    assert lost(run) == [int(fate[0])]
    assert_same(run, reference("steady", delay=0.0, **settings))


def test_a_run_that_lost_a_worker_can_be_resumed(reference: Reference, tmp_path: Path) -> None:
    """From a checkpoint of the worker that took over as the one who speaks for all."""
    run = train("steady", tmp_path / "run", workers=3, fate="0:forward:9", save_steps=4)
    kept = sorted((run.out / "checkpoints").iterdir())
    assert [path.name[-2:] for path in kept] == ["24", "28", "30"]
    for path in kept[1:]:
        shutil.rmtree(path)
    again = train("steady", run.out, workers=2, resume=True)
    assert [event["step"] for event in again.of("step")] == [*range(1, STEPS + 1), *range(25, STEPS + 1)]
    assert again.result["order_sha256"] == reference("steady").result["order_sha256"]
    assert distance(again, reference("steady")) <= 1e-9


def test_a_survivor_that_is_ahead_hands_over_what_was_agreed(warm: int, tmp_path: Path) -> None:
    """Law 3: worker 0 had the result of an agreement, worker 1 lost it on the way, worker 2 is dead."""
    run = run_script(JOBS / "handover.py", tmp_path / "run", str(tmp_path), workers=3)
    told = {worker: (tmp_path / str(worker)).read_text().split() for worker in (0, 1)}
    # agreed, position, generation, members, the sum of all three, the sum of the two that are left
    assert told[0] == told[1] == ["True", "2", "2", "0,1", "6.0", "30.0"]
    assert lost(run) == [2]
