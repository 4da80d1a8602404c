"""A host enters a run that has begun on others, and trains with them what one process trains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cordee.group.token import write_token
from harness import DEADLINE_S, Run, assert_same, job_file, train, until
from twin.emulated import Emulated, Up


def started(twin: Emulated, host: str, *words: str | Path) -> subprocess.Popen[str]:
    """The `cordee` command on a host, left running."""
    command = twin.made.command(host, [sys.executable, "-m", "cordee", *map(str, words)])
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_host_enters_a_run_that_has_begun(up: Up, warm: int, tmp_path: Path) -> None:
    token, out, gate = tmp_path / "token", tmp_path / "run", tmp_path / "gate"
    write_token(token)
    twin, job = up("3"), job_file("changing")
    meeting = ("--rendezvous", "a:29400", "--token-file", token, "--trusted-network")
    asked = ("train", job, "--workers", "1", "--threads", "1", "--nodes", "2", *meeting, "--set", f"gates=4:{gate}")
    hosts = [started(twin, "a", *asked, "--out", out)]
    try:
        hosts.append(started(twin, "b", *asked, "--out", tmp_path / "b"))
        until(gate.with_name("gate.here").exists)
        hosts.append(started(twin, "c", "join", *meeting, "--workers", "1", "--out", tmp_path / "c"))
        until(lambda: Run(out).of("change"))
        making = gate.with_suffix(".part")
        making.write_text("3")
        making.replace(gate)
        said = [host.communicate(timeout=DEADLINE_S) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert [host.returncode for host in hosts] == [0, 0, 0], said
    run = Run(out)
    assert [(one["worker"], one["host"], one["replaces"]) for one in run.of("joined")] == [(2, "c", None)]
    assert run.of("change")[0]["why"] == "host" and run.of("regroup")[-1]["workers"] == [0, 1, 2]
    assert_same(run, train("changing", tmp_path / "alone"))
