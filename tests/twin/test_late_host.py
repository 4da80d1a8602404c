"""A host enters a run that has begun on others, and trains with them what one process trains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cordee.group.token import write_token
from harness import DEADLINE_S, Run, assert_same, train
from records import events_until
from twin.emulated import Emulated, Up


def started(twin: Emulated, host: str, *words: str | Path) -> subprocess.Popen[str]:
    """The `cordee` command on a host, left running."""
    command = twin.made.command(host, [sys.executable, "-m", "cordee", *map(str, words)])
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_host_enters_a_run_that_has_begun(up: Up, warm: int, job: Path, tmp_path: Path) -> None:
    token, out = tmp_path / "token", tmp_path / "run"
    write_token(token)
    twin = up("3")
    meeting = ("--rendezvous", "a:29400", "--token-file", token, "--trusted-network")
    asked = ("train", job, "--workers", "1", "--threads", "1", "--nodes", "2", *meeting, "--set", "epochs=6")
    hosts = [started(twin, "a", *asked, "--out", out)]
    try:
        hosts.append(started(twin, "b", *asked, "--out", tmp_path / "b"))
        list(events_until(out, hosts[0], 3))
        hosts.append(started(twin, "c", "join", *meeting, "--workers", "1", "--out", tmp_path / "c"))
        said = [host.communicate(timeout=DEADLINE_S) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert [host.returncode for host in hosts] == [0, 0, 0], said
    run = Run(out)
    assert [(one["worker"], one["host"], one["replaces"]) for one in run.of("joined")] == [(2, "c", None)]
    assert run.of("change")[0]["why"] == "host" and run.of("regroup")[-1]["workers"] == [0, 1, 2]
    assert_same(run, train(job, tmp_path / "alone", epochs=6))
