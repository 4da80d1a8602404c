"""The same job under other launchers: torchrun itself, and processes with the variables of mpirun and others."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from alone import Started, python
from cordee.group.token import write_token
from harness import DEADLINE_S, JOBS, Run, assert_same, command, free_port, run_script, train
from replay import assert_audited, assert_replayed

SLOW = pytest.mark.slow
HALTS = """
import time
from torch import nn, optim
import cordee

def objective(model, batch):
    if cordee.World.from_env().rank == 1 and len(batch) > 8:  # not in the check before the first step
        time.sleep(1000)
    return nn.functional.cross_entropy(model(batch.x), batch.y)

job = cordee.Job(
    model=lambda: nn.Linear(64, 10), objective=objective, optimizer=lambda params: optim.SGD(params, lr=0.1),
    data=cordee.data.digits(), batch=100, preflight=False,
)
"""
OWN_LOOP = """
import json, sys
import torch
from torch import nn
import cordee
from cordee.train.session import stepper_of

data = cordee.data.digits()
torch.manual_seed(0)
model = nn.Linear(64, 10)
with cordee.session(plan=sys.argv[2] or None) as s:
    model = s.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in s.batches(data.train, batch=101, epochs=1):
        s.backward(nn.functional.cross_entropy(model(batch.x), batch.y))
        s.step(optimizer)
    carried_by = [type(one).__name__ for one in stepper_of(s).team.sums.transports]
    with open(f"{sys.argv[1]}-{s.rank}-of-{s.size}", "w") as file:
        json.dump([f"{s.last.loss:.5f} {stepper_of(s).ledger.order_sha256}", carried_by], file)
"""
WAITS = """
import time
import torch
import cordee

data = cordee.data.digits()
with cordee.session(deadline=10) as s:
    model = s.prepare(torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in s.batches(data.train, batch=100):
        if s.rank == 1:
            time.sleep(1000)
        s.backward(torch.nn.functional.cross_entropy(model(batch.x), batch.y))
        s.step(optimizer)
"""


def torchrun(*arguments: str | Path) -> None:
    """What `torchrun` itself does; the processes that it starts import everything anew."""
    python("torch.distributed.run", "--nproc-per-node", "2", *arguments)


def test_a_job_under_torchrun(warm: int, tmp_path: Path) -> None:
    torchrun("-m", "cordee", "train", JOBS / "mlp.py", "--out", tmp_path / "two")
    assert_same(Run(tmp_path / "two"), train("mlp", tmp_path / "one"))
    assert Run(tmp_path / "two").result["workers"] == 2
    assert {event["node"] for event in Run(tmp_path / "two").of("worker")} == {0}


@pytest.mark.slow
def test_local_steps_under_torchrun(tmp_path: Path) -> None:
    """Rank 0 has the hub that hands out parts of steps."""
    plan = ("--plan", "sync=local,local_steps=4")
    torchrun("-m", "cordee", "train", JOBS / "mlp.py", "--out", tmp_path / "two", *plan)
    run = Run(tmp_path / "two")
    assert [window["last"] for window in run.of("window")] == [4, 8, 10]
    assert_audited(run, train("mlp", tmp_path / "one"))
    assert_replayed(run, "mlp")


@pytest.mark.slow
def test_a_job_under_torchrun_on_two_hosts(tmp_path: Path) -> None:
    """Two launchers on loopback; each process knows on which of them it is."""
    write_token(tmp_path / "token")
    env = os.environ | {"CORDEE_TOKEN_FILE": str(tmp_path / "token"), "CORDEE_TRUSTED_NETWORK": "1"}
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    words += ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    job = ["-m", "cordee", "train", str(JOBS / "mlp.py"), "--out", str(tmp_path / "two")]
    hosts = [
        subprocess.Popen([*words, "--node-rank", str(node), *job], env=env, stderr=subprocess.PIPE, text=True)
        for node in range(2)
    ]
    said = [host.communicate(timeout=DEADLINE_S)[1] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], said
    run = Run(tmp_path / "two")
    assert_same(run, train("mlp", tmp_path / "one"))
    assert {event["worker"]: event["node"] for event in run.of("worker")} == {0: 0, 1: 1}
    assert json.loads((run.out / "run.json").read_text())["nodes"] == 2


def test_an_own_loop_under_every_launcher_and_alone(warm: int, tmp_path: Path) -> None:
    """The same training; what carries gradients is what the plan says, given to the session or to the launcher."""
    script = tmp_path / "loop.py"
    script.write_text(OWN_LOOP)
    python(script, tmp_path / "alone", "")
    torchrun(script, tmp_path / "torchrun", "backend=gloo")
    run_script(script, tmp_path / "one", str(tmp_path / "session"), "backend=gloo", workers=2)
    run_script(script, tmp_path / "two", str(tmp_path / "launcher"), "", workers=2, plan="backend=gloo")
    run_script(script, tmp_path / "three", str(tmp_path / "auto"), "", workers=2)
    expected, _ = json.loads((tmp_path / "alone-0-of-1").read_text())
    ways = {"torchrun": ["Gloo"], "session": ["Gloo"], "launcher": ["Gloo"], "auto": ["Shared", "Gloo"]}
    for way, carried_by in ways.items():
        for rank in range(2):
            assert json.loads((tmp_path / f"{way}-{rank}-of-2").read_text()) == [expected, carried_by], way


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torch", "cordee"])
def test_the_deadline_of_a_session_is_the_same_under_every_launcher(kind: str, tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    if kind == "cordee":
        done = command("run", script, "--workers", "2", "--threads", "1", "--out", tmp_path / "run")
        assert (done.returncode, "waited longer than 10 s" in done.stderr) == (22, True), done.stderr
        return
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, script], env={**os.environ, **variables(kind, rank, port)}, stderr=-1, text=True
        )
        for rank in range(2)
    ]
    try:
        _, said = ranks[0].communicate(timeout=DEADLINE_S)
    finally:
        ranks[1].kill()
        ranks[1].communicate()
    assert "WaitedTooLong" in said, said


def variables(kind: str, rank: int, port: int) -> dict[str, str]:
    if kind == "mpirun":
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
        return {f"OMPI_COMM_WORLD_{n}": str(v) for n, v in zip(names, (rank, 2, rank, 2), strict=True)}
    if kind == "slurm":
        found = {"SLURM_PROCID": rank, "SLURM_NTASKS": 2, "SLURM_LOCALID": rank, "SLURM_NODEID": 0}
        more = {"SLURM_JOB_NUM_NODES": 1, "SLURM_JOB_NODELIST": socket.gethostname(), "SLURM_JOB_ID": port}
        more |= {"SLURM_STEP_NUM_TASKS": 2, "SLURM_STEP_ID": 0, "SLURM_TASKS_PER_NODE": 2}
        return {name: str(value) for name, value in (found | more).items()}
    if kind == "torch":
        return {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    cluster = {"worker": [f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"]}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})}


WRAPPERS = (["timeout", str(int(DEADLINE_S))], ["sh", "-c", '"$@"; exit $?', "sh"])
"""Commands between launcher and process, a different one for each rank: their parents differ, as in two terminals."""


# The variables named torch are those that torchrun sets above.
@pytest.mark.parametrize(
    "kind", ["mpirun", *(pytest.param(one, marks=SLOW) for one in ("torch", "slurm", "tf_config"))]
)
def test_the_variables_of_other_launchers(kind: str, tmp_path: Path) -> None:
    port = free_port()
    words = [sys.executable, "-m", "cordee", "train", str(JOBS / "mlp.py"), "--out", str(tmp_path / "two")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path}
    ranks = [
        subprocess.Popen(
            [*wrapper, *words],
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables(kind, rank, port)},
            **pipes,  # type: ignore[call-overload]
        )
        for rank, wrapper in enumerate(WRAPPERS)
    ]
    said = [rank.communicate(timeout=DEADLINE_S) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert_same(Run(tmp_path / "two"), train("mlp", tmp_path / "one"))


def test_processes_whose_peers_do_not_come_wait_until_the_deadline(tmp_path: Path) -> None:
    """Rank 0 of one run, rank 1 of another."""
    words = ("train", JOBS / "mlp.py", "--deadline", "1", "--out")
    ranks = [
        Started("cordee", *words, tmp_path / str(rank), env={**os.environ, **variables("torch", rank, free_port())})
        for rank in range(2)
    ]
    said = [rank.end() for rank in ranks]
    assert [one.returncode for one in said] == [30, 30], said
    assert "waited 1 s, but not all 2 processes have come" in said[0].stderr
    assert "did not find rank 0 within 1 s" in said[1].stderr


@pytest.mark.slow
def test_the_deadline_is_heard_in_training(tmp_path: Path) -> None:
    """The other process stops in its first batch; its peer does not wait for longer than it was told."""
    job = tmp_path / "halts.py"
    job.write_text(HALTS)
    words = [sys.executable, "-m", "cordee", "train", str(job), "--out", str(tmp_path / "run"), "--deadline", "10"]
    port = free_port()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [
        subprocess.Popen(words, env={**os.environ, **variables("torch", rank, port)}, **pipes)  # type: ignore[call-overload]
        for rank in range(2)
    ]
    try:
        _, said = ranks[0].communicate(timeout=DEADLINE_S)
    finally:
        ranks[1].kill()
        ranks[1].communicate()
    assert ranks[0].returncode == 22, said


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    """By a program that speaks another language; one of ours would be the coordinator of the same run."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            there, _ = listener.accept()
            with there:
                there.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        port = listener.getsockname()[1]
        meeting = ("--rendezvous", f"127.0.0.1:{port}", "--nodes", "2")
        done = command("train", JOBS / "mlp.py", *meeting, "--out", tmp_path / "run")
    assert done.returncode == 30, done.stderr
    assert f"127.0.0.1:{port}" in done.stderr and "another program" in done.stderr
    assert "Traceback" not in done.stderr
