"""A run that is stopped, or loses all its workers, says how to go on, and goes on as it was started."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
from pathlib import Path

import pytest

import cordee
from cordee.core import errors
from cordee.watch.summarise import summarise
from harness import DEADLINE_S, Run, command, start
from records import events_until

pytestmark = pytest.mark.usefixtures("warm")

SLOW = """
import time
from pathlib import Path
import torch
from torch import nn
import cordee

class Net(nn.Linear):
    def forward(self, x):
        if self.training and Path(__file__).with_name("slowly").exists():
            time.sleep(0.2)
        return super().forward(x)

def job(epochs: int = 1):
    return cordee.Job(
        model=lambda: Net(64, 10), loss=nn.functional.cross_entropy, data=cordee.data.digits(), batch=101,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.01), epochs=epochs,
    )
"""


def last_line(said: str) -> str:
    return said.rstrip().splitlines()[-1]


def again(line: str) -> list[str]:
    """The words behind `cordee` of the command that a last line names."""
    return shlex.split(line.partition("cordee train")[1] + line.partition("cordee train")[2])[1:]


def test_a_run_is_stopped_lost_and_gone_on_with_by_what_it_says_itself(tmp_path: Path) -> None:
    """One run through everything: a second start in its folder, Ctrl-C, the loss of all workers, and its end."""
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "slowly").touch()
    out = tmp_path / "run"
    first = ("train", tmp_path / "slow.py", "--out", out, "--workers", "2", "--threads", "1")
    with start(*first, "--set", "epochs=4") as process:  # of 15 steps each
        events_until(out, process, 3)
        held = f"{out} is still being trained by process {process.pid} on {socket.gethostname()}"
        for resume in (False, True):
            with pytest.raises(errors.UsageError, match=re.escape(held)):
                cordee.train(tmp_path / "slow.py", workers=1, out=out, resume=resume, progress=False)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == errors.Interrupted.code, said
    steps = [one["step"] for one in Run(out).of("step")]
    assert f"to go on after step {steps[-1]}: cordee train " in last_line(said)
    assert again(last_line(said)) == [*map(str, first), "--resume"]

    with start(*again(last_line(said))) as process:
        found = events_until(out, process, steps[-1] + 1)
        for worker in {one["worker"]: one["pid"] for one in found if one["event"] == "worker"}.values():
            os.kill(worker, signal.SIGKILL)
        _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == errors.WorkersLost.code, said
    assert "note: settings of the run: epochs=4\n" in said
    assert again(last_line(said)) == [*map(str, first), "--resume"]

    (tmp_path / "slowly").unlink()
    ended = command(*again(last_line(said)))
    assert ended.returncode == 0, ended.stderr
    assert Run(out).result["steps"] == 60
    assert "last loss" in ended.stdout and "ended: after step 60" in ended.stdout

    kept, before = (out / "run.json").read_bytes(), summarise(out)
    for wrong, error in (("foo=3", errors.JobError), ("batch=100", errors.CheckpointError)):
        assert command(*first, "--resume", "--set", wrong).returncode == error.code
    assert (out / "run.json").read_bytes() == kept  # or every later --resume would be refused for the same reason
    after = summarise(out)
    assert (after.state, after.starts, after.running_s) == (before.state, before.starts, before.running_s)
    assert [one.kind for one in after.incidents[len(before.incidents) :]] == ["attempt", "attempt"]
    assert command(*first, "--resume", "--set", "epochs=5").returncode == 0
    assert Run(out).result["steps"] == 75  # what is given anew counts more
