"""Ranks of several hosts, whose leaders add up for them: any of them is lost at any instant, and nothing else is."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.test_worker_killed import STEPS, lost
from harness import Run, assert_same, train
from strike import Strikes

Reference = Callable[..., Run]
HOMES = "aabb"
"""Workers 0 and 2 lead their hosts."""


def struck(seed: int, out: Path) -> Run:
    """A worker is killed or stopped at some instant."""
    draw = random.Random(seed)
    victim, number = seed % len(HOMES), (signal.SIGKILL, signal.SIGSTOP)[seed // len(HOMES) % 2]
    step, delay = draw.randrange(1, STEPS - 14), draw.uniform(0, 0.03)
    strike = Strikes(out / "struck", (step, (f"worker {victim}",), number, delay))
    plan = ("auto", "bucket_mb=0.01")[seed // 2 % 2]
    run = train("hosted", out / "run", workers=len(HOMES), plan=plan, homes=HOMES, listen=strike, **strike.settings)
    strike.assert_done()
    assert lost(run) == [victim]
    return run


@pytest.mark.thinned(4)
@pytest.mark.parametrize("seed", range(8))
def test_random_instants(seed: int, reference: Reference, tmp_path: Path) -> None:
    assert_same(struck(seed, tmp_path), reference("steady"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 48))
def test_forty_random_instants(seed: int, reference: Reference, tmp_path: Path) -> None:
    assert_same(struck(seed, tmp_path), reference("steady"))


@pytest.mark.thinned(5)
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
    ("falls", "word", "target", "giver"),
    [
        pytest.param("2:ending:72", "agreed-12.0", 13, 0, id="the other host has the whole result"),
        pytest.param("0:ending:72", "agreed-12.2", 13, 2, id="the other host has it, without the first worker"),
        pytest.param("2:ending:68", "", 12, None, id="no host has it"),
    ],
)
def test_a_leader_dies_before_it_publishes_a_result(
    falls: str, word: str, target: int, giver: int | None, reference: Reference, tmp_path: Path
) -> None:
    """Agreement 13 is the ninth step, with the pieces 65 to 72: those on the leader's host do not get it from there."""
    (words := tmp_path / "words").mkdir()
    falls = f"{falls}:{words / word}" if word else falls
    run = train("hosted", tmp_path / "run", workers=len(HOMES), homes=HOMES, falls=falls, words=words)
    assert lost(run) == [int(falls[0])]
    told = [json.loads(path.read_text()) for path in words.glob("go-2.*")]
    assert [(go["target"], go["giver"]) for go in told] == [(target, giver)] * 3
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
    run = train("hosted", tmp_path / "run", workers=len(homes), homes=homes, more=json.dumps({"fate": fate}))
    assert sorted(lost(run)) == sorted(int(one[0]) for one in fate.split(","))
    assert_same(run, reference("steady"))


@pytest.mark.parametrize("victim", [1, 2])
def test_another_worker_comes_in_for_one_that_was_lost(victim: int, tmp_path: Path) -> None:
    """Members leave a generation together, while results of its last step are still being copied."""
    more = {"starts": str(tmp_path / "starts"), "fates": f"{victim}:6:SIGKILL", "waits": "9"}
    given = {"of": "replaced", "homes": HOMES, "more": json.dumps(more)}
    run = train("hosted", tmp_path / "run", workers=4, plan="replace=true", **given)
    assert [(event["worker"], event["replaces"]) for event in run.of("joined")] == [(4, victim)]
    assert_same(run, train("replaced", tmp_path / "alone", starts=tmp_path / "other_starts"))
