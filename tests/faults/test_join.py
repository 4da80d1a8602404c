"""Workers come, leave and return while a run trains: nothing is lost, and what is learnt is that of one process."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cordee.core.errors import Interrupted, RendezvousError, SecurityError, UsageError
from cordee.group.messages import Command, Hello, Who
from cordee.group.wire import LOOPBACK, Address, connect, nonce, pack
from cordee.runtime.commands import ask
from cordee.runtime.coordinator.control import FILE
from harness import Run, assert_audited, assert_same, command, run_script, train, until

SCRIPT = """
import os, signal, sys
from pathlib import Path
import torch
import cordee
from cordee.train.session import stepper_of

torch.manual_seed(0)
leaves, out = int(sys.argv[1]), Path(sys.argv[2])
with cordee.session() as s:
    model = s.prepare(torch.nn.Linear(64, 10).double())
    optimizer, channel = torch.optim.SGD(model.parameters(), lr=0.1), stepper_of(s).team.channel
    for batch in s.batches(cordee.data.digits().train, batch=100, epochs=2):
        s.backward(torch.nn.functional.cross_entropy(model(batch.x.double()), batch.y))
        s.step(optimizer)
        if s.last is not None and s.last.steps == 5 and leaves >= 0:
            if channel.worker == leaves:
                os.kill(os.getpid(), signal.SIGTERM)
            assert channel.wait(lambda: channel.newcomers, 100)
            leaves = -1
    if s.rank == 0:
        torch.save(model.state_dict(), out)
"""


class Acting:
    """Does something from outside once a run has come to a step, and then opens the gate at which it waits there."""

    def __init__(self, folder: Path, **actions: Callable[[Path], object]) -> None:
        """`step4=what` is called with the folder of the run when its workers wait after step 4."""
        self.out, self.pids = folder / "run", folder / "pids"
        self.pids.mkdir()
        self._actions = {int(name.removeprefix("step")): action for name, action in actions.items()}
        self._files = {step: folder / f"gate-{step}" for step in self._actions}
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._act, args=(step,), daemon=True) for step in self._actions]

    def _act(self, step: int) -> None:
        try:
            until(self._files[step].with_name(f"gate-{step}.here").exists)
            until(
                lambda: Run(self.out).of("step")
            )  # workers are ahead of their launcher, which must know that they train
            said = self._actions[step](self.out)
        except BaseException as error:
            self._errors.append(error)
            said = "go"
        making = self._files[step].with_suffix(".part")
        making.write_text(said if isinstance(said, str) else "")
        making.replace(self._files[step])

    def train(self, workers: int, plan: str = "auto", **settings: Any) -> Run:
        for thread in self._threads:
            thread.start()
        gates = " ".join(f"{step}:{file}" for step, file in self._files.items())
        run = train("changing", self.out, workers=workers, plan=plan, gates=gates, pids=self.pids, **settings)
        self.end()
        return run

    def end(self) -> None:
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def kill(self, worker: int, number: int) -> None:
        os.kill(int((self.pids / str(worker)).read_text()), number)


def scale(workers: int) -> Callable[[Path], str]:
    def act(out: Path) -> str:
        assert "worker" in ask(out, Command("scale", workers))
        return str(workers)

    return act


def joined(run: Run) -> list[tuple[int, int | None]]:
    return [(event["worker"], event["replaces"]) for event in run.of("joined")]


def left(run: Run) -> list[int]:
    return [event["worker"] for event in run.of("left")]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same job in one process, undisturbed."""
    return train("changing", tmp_path_factory.mktemp("alone") / "run")


@pytest.mark.parametrize("plan", ["auto", "replace=true,batchnorm=exact", "sync=server"])
def test_scale_up_and_down(alone: Run, tmp_path: Path, plan: str) -> None:
    run = Acting(tmp_path, step4=scale(4), step10=scale(1), step16=scale(2)).train(2, plan)
    assert sorted(worker for worker, _ in joined(run)) == [2, 3, 4] and left(run) == [1, 2, 3]
    assert run.result["workers"] == 2 and run.result["failures"] == 0 and run.of("failure") == []
    assert [event["workers"] for event in run.of("regroup")][-2:] == [[0], [0, 4]]
    assert_same(run, alone)
    assert not (run.out / FILE).exists()


@pytest.mark.slow
def test_one_comes_in_where_workers_do_not_wait_for_each_other(tmp_path: Path) -> None:
    run = Acting(tmp_path, step8=scale(3)).train(2, "sync=server,mode=async", epochs=4)
    assert joined(run) == [(2, None)] and run.of("failure") == []
    assert (run.result["samples_lost"], run.result["samples_repeated"]) == (0, 0)
    assert_audited(run)


def test_the_coordinator_is_lost_between_changes(alone: Run, tmp_path: Path) -> None:
    """The next one knows who was asked to come and to leave."""

    def ask_and_kill(workers: int) -> Callable[[Path], str]:
        def act(out: Path) -> str:
            scale(workers)(out)
            *_, last = Run(out).of("coordinator")
            os.kill(last["pid"], signal.SIGKILL)
            until(lambda: len(Run(out).of("coordinator")) > last["term"])
            return str(workers)

        return act

    run = Acting(tmp_path, step4=ask_and_kill(3), step10=ask_and_kill(1)).train(2)
    assert joined(run) == [(2, None)] and left(run) == [1, 2] and run.of("failure") == []
    assert [event["term"] for event in run.of("coordinator")] == [1, 2, 3]
    assert_same(run, alone)


def test_join_adds_one(alone: Run, tmp_path: Path) -> None:
    def act(out: Path) -> None:
        done = command("join", out)
        assert (done.returncode, done.stdout) == (0, "2 → 3 workers: worker 2 starts and comes in between two steps\n")

    run = Acting(tmp_path, step4=act).train(2)
    assert joined(run) == [(2, None)] and left(run) == []
    assert_same(run, alone)


@pytest.mark.parametrize(("victim", "number"), [(1, signal.SIGTERM), (0, signal.SIGTERM), (1, signal.SIGUSR1)])
def test_a_worker_that_gets_a_signal_leaves(alone: Run, tmp_path: Path, victim: int, number: int) -> None:
    acting = Acting(tmp_path, step4=lambda out: acting.kill(victim, number))
    run = acting.train(3, save_steps=2)
    assert left(run) == [victim] and run.of("failure") == [] and run.result["failures"] == 0
    assert run.of("left")[0]["reason"] == f"it was asked to leave by {signal.Signals(number).name}"
    steps = [event["step"] for event in run.of("checkpoint")]
    assert steps == sorted(set(steps)) and set(steps) >= set(range(2, run.result["steps"] + 1, 2))
    assert_same(run, alone)


def test_local_steps_are_merged_before_one_leaves(alone: Run, tmp_path: Path) -> None:
    acting = Acting(tmp_path, step8=lambda out: acting.kill(1, signal.SIGTERM))
    run = acting.train(2, "sync=local,local_steps=4")
    assert left(run) == [1] and len(run.losses) == len(alone.losses) and run.of("failure") == []
    assert (run.result["samples_lost"], run.result["samples_repeated"]) == (0, 0)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_leaves_a_loop_of_the_users_own(tmp_path: Path, victim: int) -> None:
    script, said = tmp_path / "script.py", [tmp_path / "one", tmp_path / "two"]
    script.write_text(SCRIPT)
    run_script(script, tmp_path / "alone", "-1", str(said[0]))
    run = run_script(script, tmp_path / "run", str(victim), str(said[1]), workers=3)
    assert left(run) == [victim] and run.of("failure") == []
    assert_audited(run)
    before, after = (torch.load(file, weights_only=True) for file in said)
    assert all(torch.allclose(before[name], after[name], rtol=0, atol=1e-9) for name in before)


def test_the_last_worker_stops_the_run(alone: Run, tmp_path: Path) -> None:
    """All are asked to leave, one after the other: the last one ends the run, which can be gone on with."""
    acting = Acting(
        tmp_path, step4=lambda out: acting.kill(1, signal.SIGTERM), step7=lambda out: acting.kill(0, signal.SIGTERM)
    )
    with pytest.raises(Interrupted, match="with a checkpoint"):
        acting.train(2)
    acting.end()
    assert left(Run(acting.out)) == [1] and len(Run(acting.out).of("step")) < len(alone.of("step"))
    assert_same(train("changing", acting.out, workers=1, resume=True), alone)


@pytest.mark.parametrize(("victim", "plan"), [(0, "auto"), (1, "auto"), (1, "sync=server")])
def test_a_worker_that_was_stopped_returns(alone: Run, tmp_path: Path, victim: int, plan: str) -> None:
    def stop(out: Path) -> str:
        acting.kill(victim, signal.SIGSTOP)
        until(lambda: any(event["worker"] == victim for event in Run(out).of("failure")))
        return "go"

    acting = Acting(tmp_path, step4=stop, step9=lambda out: acting.kill(victim, signal.SIGCONT))
    run = acting.train(3, plan)
    assert joined(run) == [(3, victim)] and run.result["failures"] == 1
    (change,) = run.of("change")
    assert (change["why"], change["starts"]) == ("woke", [3])
    assert run.of("regroup")[-1]["workers"] == sorted({0, 1, 2, 3} - {victim})
    assert_same(run, alone)


def test_one_that_stays_stopped_does_not_hold_up_the_end(alone: Run, tmp_path: Path) -> None:
    acting = Acting(tmp_path, step4=lambda out: acting.kill(1, signal.SIGSTOP) or "go")
    run = acting.train(2)
    assert joined(run) == [] and run.of("regroup")[-1]["workers"] == [0]
    assert_same(run, alone)


def test_strangers_at_the_port_for_commands(alone: Run, tmp_path: Path) -> None:
    """Without the secret, with it in another role, and with a file that another one could have written."""

    def act(out: Path) -> str:
        file = out / FILE
        assert file.stat().st_mode & 0o777 == 0o600
        content = file.read_text()
        port, secret = (content.partition(f'"{name}":')[2].split(",")[0].strip('"}') for name in ("port", "secret"))
        with socket.create_connection((LOOPBACK, int(port))) as sock:
            sock.sendall(pack(Hello(nonce())) + pack(Who("command", "here", proof="0" * 64)))
            while sock.recv(4096):
                pass
        with pytest.raises(RendezvousError, match="only commands come here"):
            connect(Address(LOOPBACK, int(port), secret), Who("worker", "here", 7))
        file.write_text(content.replace(secret, "0" * 64))
        with pytest.raises(UsageError, match="cannot be reached"):
            ask(out, Command("scale", 5))
        file.chmod(0o644)
        with pytest.raises(SecurityError, match="can be read by others"):
            ask(out, Command("scale", 5))
        file.unlink()
        with pytest.raises(UsageError, match="takes no commands"):
            ask(out, Command("scale", 5))
        return "go"

    run = Acting(tmp_path, step4=act).train(2)
    reasons = [event["reason"] for event in run.of("stranger")]
    assert reasons[0] == "did not show that it knows the token" and any("as another peer" in one for one in reasons)
    assert joined(run) == [] and run.of("change") == []
    assert_same(run, alone)


@pytest.mark.parametrize(
    ("workers", "plan", "whys"),
    [
        (1, "auto", {2: "started with one worker"}),
        (2, "sync=auto", {3: "--replace"}),
        (2, "shard=params", {1: "a replica lies over several workers"}),
        (2, "auto", {0: "at least 1 is needed", 10**6: "at most"}),
    ],
)
def test_refused(tmp_path: Path, workers: int, plan: str, whys: dict[int, str]) -> None:
    def act(out: Path) -> str:
        for wanted, why in whys.items():
            with pytest.raises(UsageError, match=why):
                ask(out, Command("scale", wanted))
        return "go"

    run = Acting(tmp_path, step4=act).train(workers, plan, epochs=1)
    assert run.of("change") == [] and run.result["workers"] == workers


def test_a_run_that_has_ended_takes_no_commands(alone: Run, tmp_path: Path) -> None:
    for words in (("scale", alone.out, "3"), ("join", alone.out)):
        done = command(*words)
        assert done.returncode == UsageError.code and "does not run: it has ended" in done.stderr
        assert done.stderr.count("\n") == 1
    done = command("join")
    assert done.returncode == UsageError.code and "--rendezvous" in done.stderr
