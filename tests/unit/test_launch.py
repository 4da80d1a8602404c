"""What is started, and how to go on with it, as values."""

from __future__ import annotations

import re
import shlex
import types
from dataclasses import replace
from pathlib import Path

import pytest

from cordee.core.errors import SecurityError, UsageError
from cordee.core.machine import usable_cores
from cordee.core.plan import Plan
from cordee.core.world import World
from cordee.group.messages import Seat
from cordee.group.wire import Address
from cordee.runtime.api import Options, train
from cordee.runtime.join import session
from cordee.runtime.launch import Launch
from cordee.runtime.rendezvous import Rendezvous
from cordee.runtime.spec import Target
from cordee.runtime.wording import COMMAND, PYTHON
from harness import JOBS
from records import write_checkpoint


def launch(out: Path = Path("runs/a b"), **more: object) -> Launch:
    target = Target("job", "slow job.py", {"epochs": "40"})
    return Launch(target, 3, Plan.parse(str(more.pop("plan", "auto"))), out, **more)  # type: ignore[arg-type]


def test_the_command_that_goes_on_can_be_pasted() -> None:
    target, first = Target("job", "slow job.py"), ["cordee", "train", "slow job.py", "--out", "runs/a b"]
    options = Options(workers=3, out="runs/a b")
    assert shlex.split(options.launch(target, COMMAND).again()) == [*first, "--workers", "3", "--resume"]
    call = options.launch(target, PYTHON).again()
    assert call == "cordee.train('slow job.py', out='runs/a b', workers=3, resume=True)"
    (core,) = usable_cores()[:1]
    asked = Options(
        plan=Plan.parse("accumulate=2,precision=bf16"),
        out=Path("runs/a b"),
        threads=1,
        cores=str(core),
        device="cpu",
        rendezvous="192.0.2.7:29400",
        nodes=2,
        trusted_network=True,
        replace=True,
    )
    more = ["--plan", "accumulate=2,precision=bf16", "--threads", "1", "--cores", str(core), "--device", "cpu"]
    where = ["--rendezvous", "192.0.2.7:29400", "--nodes", "2", "--trusted-network", "--replace"]
    assert shlex.split(asked.launch(target, COMMAND).again()) == [*first, *more, *where, "--resume"]
    assert (
        asked.launch(target, PYTHON)
        .again()
        .endswith(
            f"cores='{core}', device='cpu', rendezvous='192.0.2.7:29400', nodes=2, trusted_network=True, replace=True, "
            "resume=True)"
        )
    )


def test_threads_do_not_follow_the_number_of_workers_where_bits_depend_on_them() -> None:
    def threads(plan: str, given: int | None) -> int:
        seat = Seat(0, World(0, 1))
        one = Launch(Target("job", "job.py"), 1, Plan.parse(plan), Path("runs/a"), threads=given, device="cpu")
        return one.spec(Address("127.0.0.1", 1, ""), "127.0.0.1", seat).threads

    assert threads("auto", None) == len(usable_cores())
    assert (threads("exact=true", None), threads("exact=true", 3)) == (1, 3)


def test_how_to_go_on_is_said_where_there_is_a_checkpoint(tmp_path: Path) -> None:
    assert launch(tmp_path).going_on() == ""
    write_checkpoint(tmp_path, 23)
    assert launch(tmp_path).going_on() == f"to go on after step 23: {launch(tmp_path).again()}"
    script = Launch(Target("script", "loop.py"), 1, Plan(), tmp_path)
    assert script.going_on() == ""


def test_what_is_left_of_a_replica_is_told_a_plan_of_its_own(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 23)

    def told(plan: str, left: int) -> str:
        return launch(tmp_path, plan=plan).going_on(left).rpartition("; on ")[2]

    assert told("pipeline=3,schedule=gpipe,recompute=block", 2) == (
        f"2 workers: cordee train 'slow job.py' --out {shlex.quote(str(tmp_path))} --workers 2 "
        "--plan shard=params,recompute=block --resume"
    )
    assert "1 worker: " in told("tensor=3,sequence=true,proportions=1", 1)
    assert "--workers 1 --plan sync=allreduce" in told("tensor=3,sequence=true,proportions=1", 1)
    assert "--workers 2 --plan shard=gradients" in told("shard=gradients", 2)
    assert "--workers 2 --plan shard=params --resume" in told("pipeline=3,layout=channels_last", 2)
    for plan, left in (("auto", 2), ("tensor=3", 0)):
        assert "; on " not in launch(tmp_path, plan=plan).going_on(left), "no split, or nothing is left"


def test_what_is_left_on_several_hosts_is_told_a_plan(tmp_path: Path) -> None:
    """Each host has its own number of workers, and one may be gone: the user knows which."""
    write_checkpoint(tmp_path, 23)
    hosts = replace(launch(tmp_path, plan="pipeline=4"), rendezvous=Rendezvous("192.0.2.7", 29400, 2))
    assert hosts.going_on(3) == (
        f"{hosts.going_on()}; on 3 workers: the same on each host that is left, with --plan shard=params, and with "
        "--nodes and --workers as they are now"
    )
    one_each = replace(hosts, workers=1, plan=Plan(shard="optimizer", shards=2))
    assert "; on 1 worker: " in one_each.going_on(1)


def test_a_resumed_run_takes_over_what_was_not_given_anew(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"settings": {"epochs": "7", "lr": "0.1"}}')
    assert launch(tmp_path).taking_over().target.settings == {"epochs": "40"}  # not resumed
    on = launch(tmp_path, resume=True).taking_over()
    assert on.target.settings == {"epochs": "40", "lr": "0.1"}
    assert on.taken_over == {"lr": "0.1"}
    told = on.told({"lr": "0.2", "width": "8"})  # by the host that coordinates
    assert told.target.settings == {"epochs": "40", "lr": "0.1", "width": "8"}
    assert told.taken_over == {"lr": "0.1", "width": "8"}
    sent = Launch(Target("sent", "made"), 1, Plan(), tmp_path, resume=True)
    assert sent.taking_over() == sent


@pytest.mark.parametrize(
    ("options", "command", "call"),
    [
        (Options(nodes=2), "--nodes 2 needs --rendezvous HOST:PORT", "nodes=2 needs rendezvous= HOST:PORT"),
        (Options(rendezvous="a:1"), "--rendezvous a:1 needs --nodes,", "rendezvous='a:1' needs nodes=,"),
        (Options(rendezvous="a", nodes=2), "--rendezvous a: expected HOST:PORT", "rendezvous='a': expected HOST:PORT"),
        (Options(resume=True), "--resume needs --out,", "resume=True needs out=,"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_the_users_words(options: Options, command: str, call: str) -> None:
    for wording, message in ((COMMAND, command), (PYTHON, call)):
        with pytest.raises(UsageError, match="^" + re.escape(message)):
            options.launch(Target("job", "job.py"), wording)


def test_a_network_that_is_not_trusted_is_refused_in_the_users_words() -> None:
    meeting = Rendezvous("192.0.2.7", 29400, 2)
    for wording, message in ((COMMAND, "--trusted-network"), (PYTHON, "trusted_network=True")):
        with pytest.raises(SecurityError, match=f"say so: {message}$"):
            meeting.address(wording)


def test_a_deadline_is_above_zero_wherever_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = "^deadline=0: a number of seconds above 0"
    with pytest.raises(UsageError, match=message):
        session(deadline=0)
    with pytest.raises(UsageError, match=message):
        train(JOBS / "mlp.py", deadline=0, out=tmp_path / "ours", progress=False)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=message):
        train(JOBS / "mlp.py", deadline=0, out=tmp_path / "torchrun", progress=False)


def test_settings_are_for_job_files(tmp_path: Path) -> None:
    made = types.SimpleNamespace(name="made")  # what is given to `train` is not looked at before
    with pytest.raises(UsageError, match="settings= is for job files"):
        train(made, settings={"lr": 0.1}, out=tmp_path / "run")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()
