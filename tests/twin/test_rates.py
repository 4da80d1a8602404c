"""Hosts get what was nominally given to them: links of several speeds, and a part of a core."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cordee.twin.cluster import read_setting
from harness import DEADLINE_S, JOBS
from twin.emulated import Up

BUSY = """
import sys, time
print("ready", flush=True)
sys.stdin.read(1)
began, used = time.monotonic(), time.process_time()
while time.monotonic() - began < 3:
    pass
print((time.process_time() - used) / (time.monotonic() - began))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rate", ["10mbit", "100mbit", "1000mbit"])
def test_links_reach_their_nominal_speed_both_ways_at_once(rate: str, able: None, tmp_path: Path) -> None:
    nominal = read_setting("link", rate) / 1e6
    script, file = JOBS / "link_rates.py", tmp_path / "rates.json"
    words = ["twin", "run", "--script", "--hosts", f"4 x link={rate}", "--out", tmp_path / "run", script, file]
    subprocess.run([sys.executable, "-m", "cordee", *map(str, words)], timeout=300, check=True)
    found = json.loads(file.read_text())
    assert [(one, other) for one, other, *_ in found["links"]] == [
        (one, other) for one in "abcd" for other in "abcd" if one != other
    ]
    parts = [speed / nominal for _, _, speed, _ in found["links"]] + [found["allreduce"]["mbit_s"] / nominal]
    assert 0.9 <= min(parts) <= max(parts) <= 1.0, parts


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sum_over_unequal_links_is_as_fast_as_the_slowest(able: None, tmp_path: Path) -> None:
    script, file = JOBS / "link_rates.py", tmp_path / "rates.json"
    words = [
        "twin",
        "run",
        "--script",
        "--hosts",
        "link=100mbit, 2 x link=10mbit",
        "--out",
        tmp_path / "run",
        script,
        file,
    ]
    subprocess.run([sys.executable, "-m", "cordee", *map(str, words)], timeout=300, check=True)
    share = json.loads(file.read_text())["allreduce"]["mbit_s"] / 10
    assert 0.9 <= share <= 1.0, share


@pytest.mark.slow
def test_a_quarter_of_a_core_for_all_processes_of_a_host(up: Up) -> None:
    twin = up("cpu=0.25").made
    for count in (1, 2):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        words = twin.command("a", [sys.executable, "-c", BUSY])
        running = [subprocess.Popen(words, **pipes) for _ in range(count)]  # type: ignore[call-overload]
        assert all(process.stdout.readline() == "ready\n" for process in running)
        for process in running:
            process.stdin.write("x")
            process.stdin.flush()
        used = sum(float(process.communicate(timeout=DEADLINE_S)[0]) for process in running)
        assert 0.22 <= used <= 0.28, f"{count} processes"
