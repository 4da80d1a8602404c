"""Must show 6: what a user does wrong ends with a message that helps, a documented exit code, and no stack trace."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

import cordee
from alone import command
from cordee.core import errors
from cordee.group.token import write_token
from cordee.group.wire import Address
from cordee.runtime.coordinator.hub import Hub
from harness import DEADLINE_S, job_file

pytestmark = pytest.mark.usefixtures("warm")

JOB = """
import torch
from torch import nn
import cordee

def job(width: int = 64, lr: float = 0.01):
    return cordee.Job(
        model=lambda: nn.Linear(width, 10),
        loss={loss},
        optimizer=lambda params: torch.optim.SGD(params, lr=lr),
        data={data},
        batch=101,
    )
"""
CROSS_ENTROPY = "nn.functional.cross_entropy"
DIGITS = "cordee.data.digits()"


def write_job(folder: Path, *, loss: str = CROSS_ENTROPY, data: str = DIGITS) -> Path:
    path = folder / "job.py"
    path.write_text(JOB.format(loss=loss, data=data))
    return path


def assert_refused(
    ended: subprocess.CompletedProcess[str], error: type[errors.CordeeError], *words: str, traceback: bool = False
) -> None:
    """Ended with this error's code and one message that holds these words."""
    message = ended.stderr[ended.stderr.find("cordee: ") :]
    assert ended.returncode == error.code, ended.stderr
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"
    assert ended.stderr.count("Traceback") == int(traceback), ended.stderr
    assert ended.stderr.count("cordee: ") == 1, ended.stderr


# ------------------------------------------------------------- job and data


def test_a_missing_data_file(tmp_path: Path) -> None:
    job = write_job(tmp_path, data="cordee.data.npz('nowhere.npz')")
    ended = command("train", job, "--workers", "2", "--out", tmp_path / "run", cwd=tmp_path)
    assert_refused(ended, errors.DataError, str(tmp_path / "nowhere.npz"))


def test_an_npz_that_would_have_to_be_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "odd.npz", x=np.array([{"a": 1}, None], dtype=object), y=np.arange(2))
    job = write_job(tmp_path, data=f"cordee.data.npz({str(tmp_path / 'odd.npz')!r})")
    ended = command("train", job, "--workers", "2", "--out", tmp_path / "run")
    assert_refused(ended, errors.DataError, "odd.npz", "object", "code")


def test_x_and_y_of_different_length(tmp_path: Path) -> None:
    np.savez(tmp_path / "odd.npz", x=np.zeros((5, 64), np.float32), y=np.arange(4))
    job = write_job(tmp_path, data=f"cordee.data.npz({str(tmp_path / 'odd.npz')!r})")
    assert_refused(command("train", job, "--out", tmp_path / "run"), errors.DataError, "5", "4")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("batch=0", ("batch=0", "at least 1")),
        ("batch=many", ("batch=many", "a whole number")),
        ("lr=fast", ("lr=fast", "a number")),
        ("bach=3", ("bach", "batch")),
        ("shuffle=yes", ("shuffle", "full", "blocks")),
        ("clip=-1", ("clip=-1", "above 0")),
    ],
)
def test_a_wrong_setting(setting: str, words: tuple[str, ...], tmp_path: Path) -> None:
    ended = command("train", write_job(tmp_path), "--workers", "2", "--out", tmp_path / "run", "--set", setting)
    assert_refused(ended, errors.JobError, *words)


def test_a_setting_without_a_value(tmp_path: Path) -> None:
    ended = command("train", write_job(tmp_path), "--out", tmp_path / "run", "--set", "batch")
    assert_refused(ended, errors.UsageError, "batch", "name=value")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\n", ("does not define `job`",)),
        ("import cordee\njob = 3\n", ("int", "cordee.Job")),
        ("def job(:\n", ("line 1",)),
        (
            "import torch, cordee\njob = cordee.Job(model=torch.nn.Linear(1, 1), data=None, optimizer=None)\n",
            ("model", "lambda"),
        ),
        (JOB.format(loss="nn.MSELoss", data=DIGITS), ("class MSELoss", "nn.MSELoss()")),
    ],
)
def test_a_file_without_a_job(text: str, words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(text)
    ended = command("train", tmp_path / "job.py", "--workers", "2", "--out", tmp_path / "run")
    assert_refused(ended, errors.JobError, *words)


def test_no_file(tmp_path: Path) -> None:
    ended = command("train", tmp_path / "nothing.py", "--out", tmp_path / "run")
    assert_refused(ended, errors.JobError, str(tmp_path / "nothing.py"))


# ------------------------------------------------------------- model and loss


def test_a_model_that_does_not_fit_the_data(tmp_path: Path) -> None:
    ended = command("train", write_job(tmp_path), "--workers", "2", "--out", tmp_path / "run", "--set", "width=63")
    assert_refused(ended, errors.ModelError, "64", "63", "float32")


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("lambda out, y: nn.functional.cross_entropy(out, y, reduction='sum')", ("sum", "mean")),
        (
            "lambda out, y: nn.functional.cross_entropy(out - out.mean(0), y)",
            ("weighted", "samples", "preflight=False"),
        ),
        (
            "lambda out, y: nn.functional.cross_entropy(out @ out.T, torch.arange(len(y)))",
            ("compares samples with each other",),
        ),
    ],
)
def test_a_loss_that_is_no_mean_over_samples(loss: str, words: tuple[str, ...], tmp_path: Path) -> None:
    ended = command("train", write_job(tmp_path, loss=loss), "--workers", "2", "--out", tmp_path / "run")
    assert_refused(ended, errors.MixingError, *words)


def test_a_loss_of_the_wrong_shape(tmp_path: Path) -> None:
    loss = "lambda out, y: nn.functional.cross_entropy(out, y, reduction='none')"
    ended = command("train", write_job(tmp_path, loss=loss), "--workers", "2", "--out", tmp_path / "run")
    assert_refused(ended, errors.ModelError, "one number", "mean")


def test_a_loss_that_is_not_a_number(tmp_path: Path) -> None:
    """Diverged after some steps; what was saved before can be resumed."""
    ended = command(
        "train",
        write_job(tmp_path),
        "--workers",
        "2",
        "--out",
        tmp_path / "run",
        "--set",
        "lr=1e38",
        "--set",
        "epochs=3",
    )
    assert_refused(ended, errors.DivergedError, "step", "learning rate")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("optimizer=lambda params: None", ("optimizer: the function gave None", "torch.optim.Optimizer")),
        (
            "schedule=lambda sgd: torch.optim.lr_scheduler.OneCycleLR(sgd, 0.1, total_steps=14)",
            ("total_steps=14", "15 times"),
        ),
    ],
)
def test_a_function_that_makes_what_does_not_fit(fields: str, words: tuple[str, ...], tmp_path: Path) -> None:
    job = write_job(tmp_path)
    job.write_text(job.read_text() + f"\nmade = job\ndef job():\n    return made().replace({fields})\n")
    ended = command("train", job, "--workers", "2", "--out", tmp_path / "run")
    assert_refused(ended, errors.JobError, *words)


# ------------------------------------------------------------- plan and workers


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("shar=equal", ("shar", "share", "Allowed keys")),
        ("share=even", ("share", "even", "equal")),
        ("pipeline=2,compile=true", ("pipeline=2", "compile=true", "leave compile out")),
        ("proportions=5:3:2", ("3", "2 start")),
        ("equal", ("key=value",)),
        ("nowhere.yaml", ("nowhere.yaml",)),
    ],
)
def test_a_wrong_plan(plan: str, words: tuple[str, ...], tmp_path: Path) -> None:
    ended = command("train", write_job(tmp_path), "--workers", "2", "--plan", plan, "--out", tmp_path / "run")
    assert_refused(ended, errors.PlanError, *words)
    assert not (tmp_path / "run").exists()


def test_more_workers_than_cores_work_with_a_hint(tmp_path: Path) -> None:
    count = len(os.sched_getaffinity(0)) + 1
    ended = command("train", write_job(tmp_path), "--workers", str(count), "--out", tmp_path / "run")
    assert ended.returncode == 0, ended.stderr
    assert f"{count} workers share {count - 1} core" in ended.stderr


@pytest.mark.parametrize("option", [("--workers", "0"), ("--threads", "0"), ("--cores", "9999"), ("--cores", "x")])
def test_resources_that_are_not_there(option: tuple[str, str], tmp_path: Path) -> None:
    ended = command("train", write_job(tmp_path), "--out", tmp_path / "run", *option)
    assert_refused(ended, errors.UsageError, option[0], option[1])


def test_a_port_that_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(errors.RendezvousError, match=rf"127\.0\.0\.1:{port}.*another port"):
            Hub(Address("127.0.0.1", port, "token"), expected=1)


def test_a_port_that_another_program_holds(tmp_path: Path) -> None:
    write_token(tmp_path / "token")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        hangs_up = threading.Thread(target=lambda: taken.accept()[0].close(), daemon=True)
        hangs_up.start()
        meeting = ("--rendezvous", f"127.0.0.1:{port}", "--nodes", "2", "--token-file", tmp_path / "token")
        ended = command("train", write_job(tmp_path), "--workers", "1", "--out", tmp_path / "run", *meeting)
        hangs_up.join(DEADLINE_S)
    words = (f"Port {port} is in use by", f"(process {os.getpid()})", "choose another port")
    assert_refused(ended, errors.RendezvousError, *words)


# ------------------------------------------------------------- the run's folder


def test_a_folder_that_holds_a_run(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    assert command("train", job, "--out", tmp_path / "run").returncode == 0
    assert_refused(
        command("train", job, "--out", tmp_path / "run"), errors.UsageError, "--resume", str(tmp_path / "run")
    )


def test_a_start_that_came_to_nothing_does_not_hold_its_folder(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    assert command("train", job, "--set", "batch=0", "--out", tmp_path / "run").returncode == errors.JobError.code
    assert command("train", job, "--workers", "2", "--out", tmp_path / "run").returncode == 0


def test_resume_of_nothing(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    ended = command("train", job, "--resume", "--out", tmp_path / "run")
    assert_refused(ended, errors.CheckpointError, "--resume", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    assert_refused(command("train", job, "--resume"), errors.UsageError, "--out")
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    ended = command("train", job, "--resume", "--workers", "2", "--out", tmp_path / "empty")
    assert_refused(ended, errors.CheckpointError, "checkpoint", str(tmp_path / "empty"))


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = command("train", write_job(tmp_path), "--out", tmp_path / "file" / "run")
    assert_refused(ended, errors.StorageError, str(tmp_path / "file" / "run"))


def test_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    """The checkpoint after the first epoch does not fit; nothing half-written is left under its name."""
    ended = command("train", job_file("gpt"), "--workers", "2", "--out", small_disk / "run", "--set", "epochs=3")
    assert_refused(ended, errors.StorageError, str(small_disk / "run"), "space")
    assert [path.name for path in (small_disk / "run" / "checkpoints").glob("step-*")] == []


def test_a_start_that_came_to_nothing_leaves_no_folder_of_our_own_naming(tmp_path: Path) -> None:
    ended = command("train", write_job(tmp_path), "--set", "batch=0", "--workers", "1", cwd=tmp_path)
    assert_refused(ended, errors.JobError, "batch=0")
    assert not (tmp_path / "runs").exists()


def test_python_speaks_python(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(errors.UsageError, match=r"resume=True.*out="):
        cordee.train(write_job(tmp_path), workers=1, out=tmp_path, progress=False)
    with pytest.raises(errors.CheckpointError, match=r"resume=True.*out="):
        cordee.train(write_job(tmp_path), workers=1, out=tmp_path / "no", resume=True, progress=False)
    with pytest.raises(errors.UsageError, match="workers=1000000: at most"):
        cordee.train(write_job(tmp_path), workers=1_000_000, out=tmp_path / "no", progress=False)


# ------------------------------------------------------------- the user's own exceptions

FAILING = """
import torch
from torch import nn
import cordee

calls = 0

class Model(nn.Linear):
    def forward(self, x):
        global calls
        calls += 1
        if cordee.World.from_env().rank in {ranks} and calls == 20:
            raise LookupError("the twentieth sample is odd")
        return super().forward(x)

def job():
    return cordee.Job(
        model=lambda: Model(64, 10), loss=nn.functional.cross_entropy, data=cordee.data.digits(), batch=101, epochs=4,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.01),
    )
"""


@pytest.mark.parametrize("ranks", [{1}, {0, 1, 2}])
def test_an_exception_in_a_worker(ranks: set[int], tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(FAILING.format(ranks=ranks))
    ended = command("train", tmp_path / "job.py", "--workers", "3", "--out", tmp_path / "run")
    words = ("LookupError", "the twentieth sample is odd", socket.gethostname())
    assert_refused(ended, errors.WorkerFailed, *words, traceback=True)
    message = ended.stderr[ended.stderr.find("cordee: ") :]
    assert any(f"worker {rank} on" in message for rank in ranks)
    trace = ended.stderr[ended.stderr.find("Traceback") : ended.stderr.find("cordee: ")]
    assert "in forward" in trace and "raise LookupError" in trace
    assert os.path.dirname(cordee.__file__) not in trace.split("in forward")[0], (
        "our own frames say nothing to the user"
    )


def test_an_exception_in_the_job_file(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("def job():\n    return 1 / 0\n")
    ended = command("train", tmp_path / "job.py", "--workers", "3", "--out", tmp_path / "run")
    assert_refused(ended, errors.JobError, "ZeroDivisionError", "job.py, line 2")


def test_an_exception_for_callers_from_python(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(FAILING.format(ranks={1}))
    with pytest.raises(errors.WorkerFailed) as caught:
        cordee.train(tmp_path / "job.py", workers=3, out=tmp_path / "run", progress=False)
    assert caught.value.rank == 1
    assert caught.value.host == socket.gethostname()
    assert "raise LookupError" in caught.value.traceback
    assert "raise LookupError" in str(caught.value.__cause__)  # what a notebook shows
    assert caught.value.code == 20


@pytest.mark.parametrize("metric", ["lambda o, t: 'hello'", "lambda o, t: o", "lambda o, t: None"])
def test_a_metric_that_gives_something_else(metric: str, tmp_path: Path) -> None:
    job = write_job(tmp_path)
    job.write_text(
        job.read_text() + f"\nmade = job\ndef job():\n    return made().replace(metrics={{'odd': {metric}}})\n"
    )
    ended = command("train", job, "--workers", "2", "--out", tmp_path / "run")
    assert_refused(ended, errors.JobError, "'odd'", "output (")


@pytest.mark.parametrize("broken", ["script.py", "helper.py"])
def test_a_script_that_is_no_python(broken: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import helper\n")
    (tmp_path / broken).write_text("x = 1\ndef job(:\n")
    ended = command("run", "--workers", "2", "--out", tmp_path / "run", tmp_path / "script.py")
    assert_refused(ended, errors.JobError, f"{broken}, line 2: invalid syntax")


SCRIPT = "import cordee, sys\n{before}\nwith cordee.session() as s:\n    {inside}\n{after}\n"


@pytest.mark.parametrize("place", ["before", "inside", "after"])
def test_an_exception_in_a_script(place: str, tmp_path: Path) -> None:
    parts = {"before": "", "inside": "pass", "after": "", place: "raise LookupError('odd')"}
    (tmp_path / "script.py").write_text(SCRIPT.format(**parts))
    ended = command("run", "--workers", "2", "--out", tmp_path / "run", tmp_path / "script.py")
    assert_refused(ended, errors.WorkerFailed, "LookupError: odd", traceback=True)


def test_a_script_that_exits_with_a_code(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(before="", inside="pass", after="sys.exit(3)"))
    ended = command("run", "--workers", "2", "--out", tmp_path / "run", tmp_path / "script.py")
    assert ended.returncode != 0, ended.stderr
