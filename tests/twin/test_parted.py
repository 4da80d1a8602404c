"""Hosts that are cut off from each other: at most one side continues, and it trains what one process trains."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordee.core.errors import CutOff
from cordee.group.token import write_token
from harness import DEADLINE_S, Run, assert_same, distance, train
from records import events_until, read
from twin.emulated import Emulated, Up

PORT = "29411"
Host = subprocess.Popen[str]


@contextlib.contextmanager
def started(twin: Emulated, job: Path, folder: Path, *, shared: bool) -> Iterator[list[tuple[Host, Path]]]:
    """The same command on each host, as users give it; the first host coordinates."""
    token, hosts = folder / "token", list[tuple[Host, Path]]()
    write_token(token)
    names = twin.made.cluster.names
    try:
        for name in names:
            out = folder / ("run" if shared else name)
            words = ["train", str(job), "--workers", "1", "--threads", "1", "--set", "epochs=15", "--out", str(out)]
            words += ["--rendezvous", f"{names[0]}:{PORT}", "--nodes", str(len(names)), "--token-file", str(token)]
            given = twin.made.command(name, [sys.executable, "-m", "cordee", *words, "--trusted-network"])
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            hosts.append((subprocess.Popen(given, stdin=subprocess.DEVNULL, text=True, **pipes), out))  # type: ignore[call-overload]
        yield hosts
    finally:
        for host, _ in hosts:
            host.kill()
            host.communicate(timeout=DEADLINE_S)


@pytest.mark.parametrize(
    ("count", "cut", "continues"),
    [
        pytest.param(2, "b", "a", id="of two, the coordinator's side continues", marks=pytest.mark.slow),
        pytest.param(3, "a", "b", id="of three, the two that see each other continue, without the coordinator's"),
    ],
)
def test_a_host_is_cut_off(count: int, cut: str, continues: str, up: Up, warm: int, job: Path, tmp_path: Path) -> None:
    twin = up(str(count))
    with started(twin, job, tmp_path, shared=False) as hosts:
        by_name = dict(zip("abc", hosts, strict=False))
        host, out = by_name["a"]
        events_until(out, host, 5)
        twin.say("cut", cut)
        ends = {name: (host.communicate(timeout=DEADLINE_S), host.returncode) for name, (host, _) in by_name.items()}
    assert ends[continues][1] == 0, ends
    assert ends[cut][1] == CutOff.code, ends
    run, left, alone = Run(by_name[continues][1]), by_name[cut][1], train(job, tmp_path / "alone", epochs=15)
    if continues == "a":
        assert_same(run, alone)
        assert not (left / "events.jsonl").exists()
        return
    assert [one["step"] for one in run.of("step")] == [one["step"] for one in alone.of("step")]
    assert run.result["order_sha256"] == alone.result["order_sha256"] and distance(run, alone) <= 1e-9
    # The step under way when the cable was cut may have ended on one side alone: the other side does the same again.
    regrouped = min(one["step"] for one in run.of("position") if one["why"] == "regroup")
    assert max(one["step"] for one in read(left) if one["event"] == "step") <= regrouped + 1


@pytest.mark.slow
@pytest.mark.parametrize("gone", [True, False])
def test_half_of_the_hosts_claim_the_run_in_a_folder_that_they_share(
    gone: bool, up: Up, warm: int, job: Path, tmp_path: Path
) -> None:
    """The first host is silent: if it is gone, the other one continues; if it is only cut off, it was the first."""
    twin = up("2")
    with started(twin, job, tmp_path, shared=True) as hosts:
        (first, out), (second, _) = hosts
        events_until(out, first, 5)
        twin.say("cut", "a")
        if gone:
            twin.made.end_processes("a")
        ends = [(host.communicate(timeout=DEADLINE_S), host.returncode) for host in (first, second)]
    continues, other = (1, 0) if gone else (0, 1)
    assert ends[continues][1] == 0 and (gone or ends[other][1] == CutOff.code), ends
    assert len(list(out.glob("run.claim-*"))) == 1
    run = Run(out)
    assert [one["worker"] for one in run.of("failure")] == [other]
    assert_same(run, train(job, tmp_path / "alone", epochs=15))


def test_the_first_host_is_gone(up: Up, warm: int, job: Path, tmp_path: Path) -> None:
    """All of its processes at once; in a folder that all hosts see, the record is one."""
    twin = up("3")
    with started(twin, job, tmp_path, shared=True) as hosts:
        (first, out), *others = hosts
        events_until(out, first, 5)
        twin.made.end_processes("a")
        ends = [(host.communicate(timeout=DEADLINE_S), host.returncode) for host, _ in others]
    assert [code for _, code in ends] == [0, 0], ends
    run = Run(out)
    assert [one["worker"] for one in run.of("failure")] == [0]
    assert_same(run, train(job, tmp_path / "alone", epochs=15))


@pytest.mark.slow
def test_the_run_ends_while_a_host_is_cut_off(up: Up, warm: int, job: Path, tmp_path: Path) -> None:
    """When it is back there is nothing left to take over, though nothing answers where the coordinator was."""
    twin = up("3")
    with started(twin, job, tmp_path, shared=True) as hosts:
        (first, out), (second, _), (last, _) = hosts
        events_until(out, first, 5)
        twin.say("cut", "c")
        ended = [(host.communicate(timeout=DEADLINE_S), host.returncode) for host in (first, second)]
        record = (out / "events.jsonl").read_bytes()
        twin.say("mend", "c")
        said = last.communicate(timeout=DEADLINE_S)
    assert [code for _, code in ended] == [0, 0], ended
    assert last.returncode in (0, CutOff.code), said  # by whether it gave up before it was back
    assert (out / "events.jsonl").read_bytes() == record
