"""A run that fails keeps the checkpoint that was being written, counts what its workers did, and says how to go on."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from cordee.core import errors
from cordee.core.events import CheckpointEvent, Event
from cordee.watch.summarise import summarise
from harness import DEADLINE_S, Run, command, distance, job_file, run_script, start, train, until

pytestmark = pytest.mark.usefixtures("warm")

JOB = """
import time
from pathlib import Path
import torch
from torch import nn
import cordee
from cordee.state import checkpoint

HERE = Path(__file__).parent
BROKEN = (HERE / "broken").exists()
write = checkpoint.write_folder
diverges = False

def slowly(*given, **more):
    deadline = time.monotonic() + 60
    while not (HERE / "failed").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep({after})
    return write(*given, **more)

if BROKEN:
    checkpoint.write_folder = slowly  # a disk that takes its time, until after the run has failed

class Fails(cordee.Callback):
    def on_step(self, session, step):
        global diverges
        diverges = BROKEN and {how!r} == "diverges" and step.number == 5
        if BROKEN and {how!r} == f"worker {{session.rank}} fails" and step.number == 6:
            (HERE / "failed").touch()
            raise LookupError("no luck at step 7")

def loss(output, target):
    if diverges and output.requires_grad:
        (HERE / "failed").touch()
        return output.sum() * float("nan")
    return nn.functional.cross_entropy(output, target)

job = cordee.Job(
    model=lambda: nn.Linear(64, 10), loss=loss, data=cordee.data.digits(), batch=250, epochs=3, callbacks=[Fails()],
    optimizer=lambda params: torch.optim.SGD(params, lr=0.01),
)
"""


def write_job(folder: Path, how: str, after: float) -> Path:
    (folder / "job.py").write_text(JOB.format(how=how, after=after))
    (folder / "broken").touch()
    return folder / "job.py"


@pytest.mark.parametrize(
    ("how", "after", "error", "steps"),
    [
        ("worker 0 fails", 0.3, errors.WorkerFailed, 7),
        ("worker 1 fails", 2.5, errors.WorkerFailed, 7),
        ("diverges", 0.3, errors.DivergedError, 6),
    ],
)
def test_a_run_that_fails_can_be_gone_on_with(
    how: str, after: float, error: type[errors.CordeeError], steps: int, tmp_path: Path
) -> None:
    """In step 7, while the checkpoint of the first epoch is being written."""
    out = tmp_path / "run"
    first = ["train", str(write_job(tmp_path, how, after)), "--out", str(out), "--workers", "2"]
    failed = command(*first)
    assert failed.returncode == error.code, failed.stderr
    waits = "note: before the run ends: waiting for the checkpoint of step 6, which is still being written"
    assert (waits in failed.stderr) == (after > 2)

    assert [path.name for path in (out / "checkpoints").iterdir()] == ["step-00000006"]
    assert [event["step"] for event in Run(out).of("checkpoint")] == [6]
    summary = summarise(out)
    assert summary.steps == steps
    assert all(one.steps >= 6 for one in summary.workers)  # of the seventh the other one may not have told yet
    assert not Run(out).of("failure") and not Run(out).of("regroup")
    missing = summary.samples - sum(one.samples for one in summary.workers)
    assert any(one.at_least for one in summary.workers) == (missing > 0)

    said, _, way_on = failed.stderr.rstrip().splitlines()[-1].partition("; to go on after step 6: ")
    assert said.startswith("cordee: ") and shlex.split(way_on) == ["cordee", *first, "--resume"]
    assert Run(out).of("end")[0]["message"].endswith(way_on)
    (tmp_path / "broken").unlink()
    ended = command(*shlex.split(way_on)[1:])
    assert ended.returncode == 0, ended.stderr
    assert Run(out).result["steps"] == 18


SCRIPT = """
import torch
import cordee
from cordee.train.session import stepper_of

model = torch.nn.Linear(64, 10)
with cordee.session() as s:
    s.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in s.batches(cordee.data.digits().train, batch=250, epochs=3):
        if stepper_of(s).number == 11 and s.rank == 1:
            raise LookupError("no luck after step 11")
        s.backward(torch.nn.functional.cross_entropy(model(batch.x), batch.y))
        s.step(optimizer)
"""


def test_a_script_that_fails_is_counted_too(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    with pytest.raises(errors.WorkerFailed, match=r"no luck after step 11$"):  # what it saved is the script's affair
        run_script(tmp_path / "script.py", tmp_path / "run", workers=2)
    summary = summarise(tmp_path / "run")
    assert summary.steps >= 10  # of the last one the other worker may not have told yet
    assert all(one.steps >= 10 for one in summary.workers)


LARGE = """
import torch
from torch import nn
import cordee

job = cordee.Job(
    model=lambda: nn.Sequential(nn.Linear(64, 300), nn.Linear(300, 10)), loss=nn.functional.cross_entropy, batch=101,
    data=cordee.data.digits(), optimizer=lambda params: torch.optim.SGD(params, lr=0.01), epochs=3,
)
"""


def test_a_disk_that_fills_up_leaves_a_way_on(small_disk: Path, tmp_path: Path) -> None:
    """The first checkpoint fits, the second does not; and once not even the record can be written any more."""
    job, out = tmp_path / "job.py", small_disk / "run"
    job.write_text(LARGE)
    first = ["train", str(job), "--out", str(out), "--workers", "2"]
    ended = command(*first)
    assert ended.returncode == errors.StorageError.code, ended.stderr
    assert f"; to go on after step 15: cordee {shlex.join(first)} --resume\n" in ended.stderr
    shutil.rmtree(out)

    def fill(event: Event) -> None:
        if isinstance(event, CheckpointEvent):
            with contextlib.suppress(OSError), (small_disk / "other").open("wb", buffering=0) as file:
                while file.write(bytes(1024)):
                    pass

    with pytest.raises(errors.StorageError, match=r"cannot write .*events\.jsonl: .*; to go on after step \d+: "):
        train("steady", out, workers=2, listen=fill, delay=0.02, epochs=5)


def test_a_disk_that_fills_up_under_the_log_of_a_parameter_server(small_disk: Path, tmp_path: Path) -> None:
    """A smaller model's checkpoints fit; the log, to which each step is added, does not."""
    job, out = tmp_path / "job.py", small_disk / "run"
    job.write_text(LARGE.replace("300", "80"))
    words = ["train", str(job), "--out", str(out), "--workers", "2", "--plan", "sync=server,backups=false"]
    ended = command(*words)
    assert ended.returncode == errors.StorageError.code, ended.stderr
    assert "the log of a parameter server" in ended.stderr and "No space left on device" in ended.stderr


def is_mounted(*words: str | Path) -> bool:
    """Whether `mount` did it: not while a file there is open for writing."""
    return subprocess.run(["mount", *words], capture_output=True, check=False).returncode == 0


def test_a_checkpoint_folder_that_becomes_read_only_leaves_a_way_on(tmp_path: Path) -> None:
    """After some checkpoints, and again when it is resumed; it trains to its end once the folder can be written."""
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    if not is_mounted("--bind", folder, folder):
        pytest.skip("file systems cannot be mounted here")
    words = ["train", str(job_file("steady")), "--out", str(tmp_path / "run"), "--workers", "2", "--threads", "1"]
    words += ["--set", "delay=0.03", "--set", "save_steps=2"]
    try:
        with start(*words) as process:
            until(lambda: any(folder.glob("step-*")))
            until(lambda: is_mounted("-o", "remount,bind,ro", folder))
            _, said = process.communicate(timeout=DEADLINE_S)
        for ended in (process.returncode, (again := command(*words, "--resume")).returncode):
            assert ended == errors.StorageError.code, said
        for text in (said, again.stderr):
            last = text.splitlines()[-1]
            assert (
                "Read-only file system" in last and f"cannot write {folder}/step-" in last and "Traceback" not in text
            )
            assert f"; to go on after step {max(folder.iterdir()).name.removeprefix('step-').lstrip('0')}: " in last
        assert is_mounted("-o", "remount,bind,rw", folder)
        assert command(*words, "--resume", "--set", "delay=0").returncode == 0
    finally:
        subprocess.run(["umount", folder], check=True)
    alone = train("steady", tmp_path / "alone", delay=0)
    assert Run(tmp_path / "run").result["order_sha256"] == alone.result["order_sha256"]
    assert distance(Run(tmp_path / "run"), alone) <= 1e-9


def test_a_checkpoint_that_takes_too_long_can_be_given_up(tmp_path: Path) -> None:
    """It does not stand, so it is neither counted nor named."""
    out = tmp_path / "run"
    job = write_job(tmp_path, "worker 0 fails", 300.0)
    said = tmp_path / "said"
    with said.open("w") as file, start("train", job, "--out", out, "--workers", "2", stderr=file) as process:
        until(lambda: "Ctrl-C gives it up" in said.read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == errors.WorkerFailed.code
    assert "to go on" not in said.read_text()
    assert not list((out / "checkpoints").glob("step-*"))
    assert summarise(out).checkpoints == 0
