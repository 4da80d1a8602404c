"""The bytes that a report shows are those that leave the hosts, as the kernel counts them at their interfaces."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cordee.watch.summarise import summarise
from harness import DEADLINE_S, JOBS
from jobs.counted import make
from records import read

NEAR = 0.05
"""Heartbeats and the record of the run go over the same link, and TLS adds a little to each message."""


def count(out: Path, hosts: str, plan: str, *plans: str) -> list[dict[str, Any]]:
    """Train by these plans, each with its steps, on hosts that count what they send; what each worker has counted."""
    words = ["twin", "run", "--script", "--hosts", hosts, "--out", out / "run", JOBS / "counted.py"]
    given = ["--plan", plan, out, *plans]
    command = [sys.executable, "-m", "cordee", *map(str, [*words, *given])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(path.read_text()) for path in sorted(out.glob("sent-*.json"))]


def leaves(out: Path) -> float:
    """What left all hosts, as the report has it."""
    summary = summarise(out / "run")
    servers = summary.traffic.servers.values()
    used = summary.resources
    return used["bytes_sent"] - used["bytes_near"] + sum(one["bytes_sent"] - one["bytes_near"] for one in servers)


@pytest.mark.timeout(300)
def test_every_codec_and_local_steps(able: None, warm: int, tmp_path: Path) -> None:
    """One worker per host: all that it sends crosses its interface. Where that is little, there are more steps."""
    steps = {"sync=allreduce": 6, "compress=bf16": 6, "compress=int8": 6, "compress=topk": 20}
    steps |= {"compress=onebit": 20, "compress=powersgd": 20, "sync=local,local_steps=6": 12}
    plans = [f"{number}:{plan}" for plan, number in steps.items()]
    hosts = count(tmp_path, "2 x link=1000mbit", "sync=allreduce", *plans)
    columns: dict[tuple[int, str], dict[int, float]] = {}
    for one in read(tmp_path / "run"):
        if one["event"] == "times":
            for name in ("sent", "plain", "hidden_ms", "compute_ms"):
                columns.setdefault((one["worker"], name), {}).update(enumerate(one[name], start=one["from"]))
    for worker, host in enumerate(hosts):
        for plan, seen in host["plans"].items():

            def total(name: str, worker: int = worker, seen: dict[str, int] = seen) -> float:
                return sum(columns[worker, name][number] for number in range(seen["from"], seen["to"]))

            assert total("sent") == pytest.approx(seen["sent"], rel=NEAR), f"{plan} on worker {worker}"
            assert 0 <= total("hidden_ms") <= total("compute_ms")
            if plan.startswith("compress="):
                exact = host["plans"]["sync=allreduce"]["sent"] * steps[plan] / steps["sync=allreduce"]
                assert total("plain") == pytest.approx(exact, rel=NEAR), "what it would have been"
        assert sum(columns[worker, "hidden_ms"].values()) > 0, "a large layer is sent while the next one is computed"
    assert leaves(tmp_path) == pytest.approx(sum(one["all"] for one in hosts), rel=NEAR)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "plan",
    [
        "sync=server,servers=2",
        pytest.param("sync=server,mode=stale,staleness=4", marks=pytest.mark.slow),
        pytest.param("sync=server,backups=false", marks=pytest.mark.slow),
    ],
)
def test_parameter_servers(plan: str, able: None, warm: int, tmp_path: Path) -> None:
    """Workers push, servers answer and keep their backups; what a server gets from its own host does not leave it."""
    hosts = count(tmp_path, "2 x link=1000mbit", plan, f"6:{plan}")
    assert leaves(tmp_path) == pytest.approx(sum(one["all"] for one in hosts), rel=NEAR)
    summary = summarise(tmp_path / "run")
    assert all(one.bytes_received > 6 * 9_000_000 for one in summary.workers)
    assert 0 < summary.resources["bytes_near"] < summary.resources["bytes_sent"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_workers_per_host(able: None, warm: int, tmp_path: Path) -> None:
    """One of them sums with the other host: its link carries 2 (h - 1) / h of a gradient, in a flat ring 2 (n - 1) / n.

    What layers and codecs gather goes around the ring of all workers, of which every second message stays on its host.
    """
    sent = {}
    for plan, codecs in (("backend=auto", ["6:backend=auto,compress=int8"]), ("backend=gloo", [])):
        (out := tmp_path / plan).mkdir()
        hosts = count(out, "2 x link=1000mbit workers=2", plan, f"8:{plan}", *codecs)
        assert leaves(out) == pytest.approx(sum(one["all"] for one in hosts[::2]), rel=NEAR)
        sent[plan] = [one["plans"][plan]["sent"] for one in hosts[::2]]
    for host in range(2):
        ratio = sent["backend=auto"][host] / sent["backend=gloo"][host]
        assert ratio == pytest.approx((2 * 1 / 2) / (2 * 3 / 4), rel=NEAR)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_hosts_with_other_numbers_of_workers(able: None, warm: int, tmp_path: Path) -> None:
    """Three, one and two: each host's link carries 2 (3 - 1) / 3 of a gradient."""
    hosts = count(
        tmp_path, "link=1000mbit workers=3, link=1000mbit, link=1000mbit workers=2", "auto", "6:sync=allreduce"
    )
    assert len(hosts) == 6
    assert leaves(tmp_path) == pytest.approx(sum(hosts[first]["all"] for first in (0, 3, 4)), rel=NEAR)
    gradient = 4 * sum(one.numel() for one in make().parameters())
    for first in (0, 3, 4):
        assert hosts[first]["plans"]["sync=allreduce"]["sent"] == pytest.approx(6 * gradient * 4 / 3, rel=NEAR)
