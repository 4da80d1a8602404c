"""Ranks of several hosts, whose leaders add up for them: any of them is lost at any instant, and nothing else is."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.test_worker_killed import STEPS, Strike, after_step, lost
from harness import Run, assert_same, train

Reference = Callable[..., Run]
HOMES = "aabb"
"""Workers 0 and 2 lead their hosts."""


def struck(seed: int, out: Path) -> Run:
    """A worker is killed or stopped at some instant."""
    draw = random.Random(seed)
    victim, number = seed % len(HOMES), (signal.SIGKILL, signal.SIGSTOP)[seed // len(HOMES) % 2]
    strike = Strike(out / "pids", victim, number, after_step(draw.randrange(1, STEPS - 14)), draw.uniform(0, 0.03))
    plan = ("auto", "bucket_mb=0.01")[seed // 2 % 2]
    run = train("hosted", out / "run", workers=len(HOMES), plan=plan, homes=HOMES, listen=strike, **strike.settings)
    strike.assert_done()
    assert lost(run) == [victim]
    return run


@pytest.mark.parametrize("seed", range(8))
def test_random_instants(seed: int, reference: Reference, tmp_path: Path) -> None:
    assert_same(struck(seed, tmp_path), reference("steady"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 48))
def test_forty_random_instants(seed: int, reference: Reference, tmp_path: Path) -> None:
    assert_same(struck(seed, tmp_path), reference("steady"))


@pytest.mark.parametrize("number", [65, 68, 72], ids=["first piece", "middle", "last piece"])
@pytest.mark.parametrize("place", ["ending", "ended"])
@pytest.mark.parametrize("worker", [0, 2, 3])
def test_a_worker_dies_when_it_has_a_result(
    worker: int, place: str, number: int, reference: Reference, tmp_path: Path
) -> None:
    """A gradient has eight pieces. Its leader has the result and has not published it, or has; or another copies it."""
    run = train("hosted", tmp_path / "run", workers=len(HOMES), homes=HOMES, falls=f"{worker}:{place}:{number}")
    assert lost(run) == [worker]
    assert_same(run, reference("steady"))


@pytest.mark.parametrize(
    ("homes", "fate"),
    [
        pytest.param("aabb", "0:backward:9,2:backward:9", id="both leaders at once"),
        pytest.param("aabb", "2:backward:9,3:update:12:SIGSTOP", id="a host, one after the other"),
        pytest.param("abb", "0:forward:9", id="one host is left"),
        pytest.param("aab", "0:after:9:SIGSTOP", id="one rank per host is left"),
    ],
)
def test_what_is_left_may_need_another_transport(homes: str, fate: str, reference: Reference, tmp_path: Path) -> None:
    run = train("hosted", tmp_path / "run", workers=len(homes), homes=homes, fate=fate)
    assert sorted(lost(run)) == sorted(int(one[0]) for one in fate.split(","))
    assert_same(run, reference("steady"))
