"""A run whose terminal is closed stops as by Ctrl-C: with a checkpoint and a report, whatever it still prints."""

from __future__ import annotations

import fcntl
import os
import signal
import termios
from pathlib import Path

import pytest

from cordee.core.errors import Interrupted
from harness import DEADLINE_S, Run, start
from records import events_until

JOB = """
import time
import torch
from torch import nn
import cordee

class Net(nn.Linear):
    def forward(self, x):
        print("computing", flush=True)
        time.sleep(0.02)
        return super().forward(x)

job = cordee.Job(
    model=lambda: Net(64, 10), loss=nn.functional.cross_entropy, data=cordee.data.digits(), batch=101, epochs=1000,
    optimizer=lambda params: torch.optim.SGD(params, lr=0.01),
)
"""


def take_terminal() -> None:
    """In the child: what is standard output becomes the terminal of its session, which hangs up when it is closed."""
    os.setsid()
    fcntl.ioctl(1, termios.TIOCSCTTY, 0)


@pytest.mark.parametrize("ignored", [False, True])
def test_a_terminal_is_closed(ignored: bool, warm: int, tmp_path: Path) -> None:
    """With `nohup` the run goes on, though nobody reads what it says."""
    (tmp_path / "job.py").write_text(JOB)
    out = tmp_path / "run"
    screen, terminal = os.openpty()

    def prepare() -> None:
        take_terminal()
        if ignored:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal, "preexec_fn": prepare}
    words = ("train", tmp_path / "job.py", "--workers", "2", "--threads", "1", "--out", out)
    with start(*words, **streams) as process:
        try:
            os.close(terminal)
            at = events_until(out, process, 3)[-1]
            os.close(screen)
            if ignored:
                events_until(out, process, at.get("step", 3) + 10)
                process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == Interrupted.code
        finally:
            process.kill()
    run = Run(out)
    assert run.result["steps"] == len(run.of("step")) == int(max((out / "checkpoints").glob("step-*")).name[5:])
    assert (out / "report.html").exists()
    assert run.of("end")[-1]["code"] == Interrupted.code
