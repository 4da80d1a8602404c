"""Jobs on the hosts of a twin train what one process trains, undisturbed and disturbed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from cordee.twin.registry import Entry
from harness import DEADLINE_S, Run, assert_same, command, start, train
from records import events_until
from twin.emulated import Emulated, Up, await_entry, left, namespaces

SCRIPT = """
import sys, time
from pathlib import Path
import torch
from torch import nn
import cordee

torch.manual_seed(0)
with cordee.session() as s:
    model = s.prepare(nn.Linear(64, 10))
    optimizer, done = torch.optim.SGD(model.parameters(), lr=0.1), 0
    for batch in s.batches(cordee.data.digits().train, batch=100, epochs=99):
        time.sleep(0.02)
        s.backward(nn.functional.cross_entropy(model(batch.x), batch.y))
        done += s.step(optimizer)
        if done == int(sys.argv[1]):
            break
    if s.rank == 0:
        Path(__file__).with_name("said").write_text(f"{done} steps, {s.size} left")
"""
STAY = "import time; print('ready', flush=True); time.sleep(1000)"
GREET = """
import socket, ssl, struct, time

def reach():
    while True:
        try:
            return socket.create_connection(("a", 29400), timeout=30)
        except OSError:
            time.sleep(0.05)

with reach() as plain:
    words = b'{"message":"hello","nonce":"00000000000000000000000000000000"}'
    plain.sendall(struct.pack("!I", len(words)) + words)
    try:
        answer = plain.recv(1000)
    except OSError:
        answer = b""
    print("plain:", "nonce" if b"nonce" in answer else "no answer")
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
with context.wrap_socket(reach()) as connection:
    connection.sendall(struct.pack("!I", len(words)) + words)
    print("tls:", "nonce" if b"nonce" in connection.recv(1000) else "no answer")
"""
"""A stranger at the address where the hosts meet: whoever speaks our language in the clear gets no answer there."""


def finished(process: subprocess.Popen[str], entry: Entry, token: str, out: Path) -> Run:
    """The run, once it has ended well, left no secret, and nothing is left of its twin."""
    numbers = set(namespaces(entry.name).values())
    said, complaints = process.communicate(timeout=2 * DEADLINE_S)
    assert process.returncode == 0, complaints
    assert f"report: {out / 'report.html'}" in said
    assert left(entry.name, numbers) == {}
    files = [file for file in out.parent.rglob("*") if file.is_file()]
    assert out / "events.jsonl" in files
    assert [file for file in files if token.encode() in file.read_bytes()] == []
    assert token not in said + complaints
    return Run(out)


def pairs(run: Run) -> list[tuple[str, str]]:
    """The links that were measured at the start; each has a speed and a round trip."""
    (found,) = run.of("links")
    assert all(speed > 0 and milliseconds > 0 for _, _, speed, milliseconds in found["links"])
    return [(source, target) for source, target, *_ in found["links"]]


def test_a_worker_is_killed_and_a_host_is_cut_off(able: None, warm: int, job: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "run"
    faults = "at step 5: kill worker 1; at step 12: cut c; at step 99999: cut b"
    words = ["--hosts", "3", "--schedule", faults, "--out", str(out)]
    with start("twin", "run", job, *words) as process:
        try:
            entry = await_entry(process, whole=True)
            token = entry.token_file.read_text().strip()
            assert len(token) >= 32
            assert Emulated(entry.name).python("c", GREET) == "plain: no answer\ntls: nonce\n"
            run = finished(process, entry, token, out)
        finally:
            process.terminate()
    assert_same(run, train(job, tmp_path / "alone"))
    assert (run.result["workers"], run.result["failures"]) == (3, 2)
    assert pairs(run) == [("a", "b"), ("b", "c"), ("c", "a")]
    kill, cut = (one["what"] for one in run.of("fault"))
    victim = next(one for one in run.of("worker") if one["worker"] == 1)
    assert (kill, cut) == (f"kill worker 1 (process {victim['pid']} on {victim['host']})", "cut c")
    assert {one["host"] for one in run.of("worker")} == {"a", "b", "c"}
    assert {one["host"] for one in run.of("failure")} == {victim["host"], "c"}
    never = "did not happen, the run ended before: at step 99999: cut b"
    assert run.events[-1]["message"] == never and never in (out / "report.html").read_text()


def test_what_another_host_wrote_is_brought_to_the_first(able: None, warm: int, job: Path, tmp_path: Path) -> None:
    """Once no worker of the first host is left; the checkpoints too, so that it can be gone on with from the last."""
    out = tmp_path / "out" / "run"
    words = ["twin", "run", job, "--hosts", "2", "--out", out]
    done = command(*words, "--set", "epochs=1", "--schedule", "at step 3: kill worker 0")
    assert done.returncode == 0, done.stderr
    assert "step-00000015, model.safetensors" in done.stderr and "moved to" in done.stderr
    assert Run(out).result["steps"] == 15
    assert_same(Run(out), train(job, tmp_path / "alone", epochs=1))
    run = train(job, out, resume=True, epochs=2)
    assert_same(run, train(job, tmp_path / "alone again"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_unequal_hosts_train_as_one_process(able: None, warm: int, job: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "run"
    hosts = "2 x cpu=0.75 link=100mbit, name=far cpu=0.25 link=10mbit workers=2"
    with start("twin", "run", job, "--hosts", hosts, "--out", str(out)) as process:
        try:
            entry = await_entry(process, whole=True)
            run = finished(process, entry, entry.token_file.read_text().strip(), out)
        finally:
            process.terminate()
    assert_same(run, train(job, tmp_path / "alone"))
    assert (run.result["workers"], run.result["failures"], run.of("fault")) == (4, 0, [])
    assert pairs(run) == [("a", "b"), ("b", "far"), ("far", "a")]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_example_trains_on_three_hosts(able: None, warm: int, tmp_path: Path) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "digits.py"
    out = tmp_path / "out" / "run"
    words = ["--hosts", "3 x link=100mbit", "--set", "epochs=2", "--out", str(out)]
    with start("twin", "run", example, *words) as process:
        try:
            entry = await_entry(process, whole=True)
            run = finished(process, entry, entry.token_file.read_text().strip(), out)
        finally:
            process.terminate()
    assert_same(run, train(example, tmp_path / "alone", epochs=2), loss=1e-5, tensor=None)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_host_is_killed_and_the_run_is_gone_on_with_elsewhere(
    able: None, warm: int, job: Path, tmp_path: Path
) -> None:
    """The first host ends the run; resumed on another twin, where the schedule begins with the step it begins with."""
    out = tmp_path / "out" / "run"
    words = ["--out", str(out), "--set", "epochs=4"]
    faults = "at step 8: kill host b; at step 40: kill host a"
    with start("twin", "run", job, *words, "--hosts", "2", "--schedule", faults) as process:
        _, complaints = process.communicate(timeout=2 * DEADLINE_S)
    assert process.returncode != 0, complaints
    again = "at step 3: kill worker 0; every 45 steps: set a link=1gbit"
    with start("twin", "run", job, *words, "--hosts", "1", "--schedule", again, "--resume") as process:
        _, complaints = process.communicate(timeout=2 * DEADLINE_S)
    assert process.returncode == 0, complaints
    run, alone = Run(out), train(job, tmp_path / "alone", epochs=4)
    assert run.result["order_sha256"] == alone.result["order_sha256"]
    assert run.result["loss"] == pytest.approx(alone.result["loss"], rel=1e-12)
    assert [one["what"] for one in run.of("fault")] == ["kill host b", "kill host a", "set a link=1gbit"]
    assert json.loads((out / "run.json").read_text())["workers"] == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_worker_is_killed_by_hand_while_a_script_runs_on_a_twin_that_stays(up: Up, warm: int, tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(SCRIPT)
    twin, out = up("2"), tmp_path / "run"
    early = command("twin", "kill", "1", "--name", twin.name)
    assert early.returncode == 2 and f"no run was started on twin {twin.name}" in early.stderr
    words = ["--script", "--name", twin.name, "--out", out, "300"]
    with twin.running("b", STAY) as other, start("twin", "run", script, *words) as process:
        try:
            events_until(out, process, 5)
            second = command("twin", "run", script, "--script", "--name", twin.name, "--out", tmp_path / "second", "1")
            assert second.returncode == 2 and f"is in progress on twin {twin.name}" in second.stderr
            twin.say("kill", "1")
            again = command("twin", "kill", "1", "--name", twin.name)
            assert again.returncode == 2 and "cordee: kill worker 1: " in again.stderr
            _, complaints = process.communicate(timeout=DEADLINE_S)
        finally:
            process.terminate()
        assert process.returncode == 0, complaints
        assert other.poll() is None, "what others do on the hosts goes on"
    run = Run(out)
    assert not (tmp_path / "second").exists()
    assert [one["worker"] for one in run.of("failure")] == [1]
    (fault,) = (one["what"] for one in run.of("fault"))
    assert fault.startswith("kill worker 1 (process "), "the second one was refused, and is not on record"
    late = command("twin", "kill", "0", "--name", twin.name)
    assert late.returncode == 2 and "the run in" in late.stderr and "has ended" in late.stderr
    assert run.events[-1]["event"] == "end"
    assert (tmp_path / "said").read_text() == "300 steps, 1 left", "words behind the script are its own"
    assert twin.exec("b", "hostname").stdout == "b\n", "it stays"


def test_hosts_that_only_store(able: None, warm: int, job: Path, tmp_path: Path) -> None:
    """They hold all servers; when one is cut off, the other one has all that it had, and gets a new backup."""
    out = tmp_path / "out" / "run"
    words = ["--hosts", "2, 2 x workers=0", "--plan", "sync=server,servers=2", "--out", out]
    done = command("twin", "run", job, *words, "--schedule", "at step 5: cut c")
    assert done.returncode == 0, done.stderr
    run = Run(out)
    assert_same(run, train(job, tmp_path / "alone"))
    assert {one["host"] for one in run.of("worker")} == {"a", "b"}
    servers = [(one["shard"], one["what"], one["host"]) for one in run.of("server")]
    assert sorted(servers[:4]) == [(0, "backup", "d"), (0, "first", "c"), (1, "backup", "c"), (1, "first", "d")]
    assert sorted(one for one in servers[4:] if one[1] == "lost") == [(0, "lost", "c"), (1, "lost", "c")]
    assert (0, "first", "d") in servers[4:]
    assert {host for _, what, host in servers[4:] if what == "backup"} <= {"a", "b"}
