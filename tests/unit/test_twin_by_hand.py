"""What a person does to a run on a twin: changes by hand are on its record, and whoever stops it hears it once."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordee.cli import twin as cli
from cordee.core.errors import Interrupted
from cordee.twin.cluster import Cluster
from cordee.twin.commands import HostProcesses, RunRequest, occupied
from cordee.twin.registry import Registry
from cordee.twin.run import run, tell_ends
from cordee.twin.schedule import Schedule
from cordee.twin.twin import Twin
from records import event, read, start, write


@pytest.fixture
def recorded(tmp_path: Path) -> Twin:
    """Hosts a and b with links, on record only: what is to run there is the test's affair."""
    registry = Registry(tmp_path / "twins")
    with registry.locked():
        return Twin(registry.add("t", Cluster.parse("2"), stays=True, namespaces=True), registry)


@pytest.fixture
def deaf() -> Iterator[None]:
    """A signal that comes before the run listens to it does not end the tests."""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    yield
    signal.signal(signal.SIGINT, before)


def follow(twin: Twin, out: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> int:
    """A run that consists of these shell scripts."""
    commands = {host: ["sh", "-c", script] for host, script in scripts.items()}
    monkeypatch.setattr("cordee.twin.commands.commands", lambda twin, asked: commands)
    return run(twin, RunRequest("train", Path("job.py"), out), Schedule(), say=print)


# ------------------------------------------------------------- on record


def test_changes_by_hand_are_on_the_record_of_the_run_that_goes_on(
    recorded: Twin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Twin, "find", lambda name: recorded)
    for method in ("plug", "set"):
        monkeypatch.setattr(Twin, method, lambda *words: None)

    def change() -> None:
        cli.cut("b")
        cli.mend("b")
        cli.set_("b", ["link=10mbit", "cpu=0.5"])

    def found() -> list[str]:
        return [one["what"] for one in read(out) if one["event"] == "fault"]

    out = write(tmp_path / "out", start(0.0, 2))
    change()
    (recorded.entry.folder / "run").write_text(str(out))
    change()
    assert found() == [], "no run goes on there"
    with occupied(recorded):
        change()
        assert found() == ["cut b", "mend b", "set b link=10mbit cpu=0.5"]
        write(out, [event("end", 2.0, reason="completed", code=0, message="")])
        change()
    assert len(found()) == 3, "it has ended, and only says goodbye"


# ------------------------------------------------------------- stopped, and ended


@pytest.mark.parametrize(
    ("events", "message"),
    [([], "stopped before the run began"), (start(0.0, 2), "stopped before its first step")],
)
def test_whoever_stops_a_run_hears_it_once(
    events: list[dict[str, object]],
    message: str,
    recorded: Twin,
    deaf: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Ctrl-C reaches the first host as SIGTERM, which ends without a word what is still importing."""
    (tmp_path / "out").mkdir()
    lines = "".join(f"{json.dumps(one)}\n" for one in events)
    record = f"printf %s {shlex.quote(lines)} > {tmp_path}/out/events.jsonl; "
    loudly = "trap 'echo interrupted; exit 130' INT; while :; do kill -INT $PPID; sleep 0.1; done"
    with pytest.raises(Interrupted) as stopped:
        follow(recorded, tmp_path / "out", monkeypatch, a=record + loudly, b="sleep 1000")
    assert str(stopped.value) == message
    assert capfd.readouterr() == ("", "")


def test_nobody_takes_the_place_of_a_first_host_that_failed(
    processes: Twin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"touch {tmp_path}/begun; sleep 1000"
    assert follow(processes, tmp_path / "out", monkeypatch, a="sleep 0.1; exit 3", b=other) == 3
    assert not (tmp_path / "begun").exists()


def test_what_the_first_host_has_said_is_not_repeated(recorded: Twin) -> None:
    own, said = HostProcesses(recorded.entry.folder), list[str]()
    for host, code in (("a", 20), ("b", 20)):
        own.hosts[host] = subprocess.Popen(["sh", "-c", f"exit {code}"])
    own.wait(10.0)
    log = recorded.entry.folder / "b.log"
    for line in ("cordee: the run was ended: worker 1 on b failed", "cordee: the disk is full"):
        log.write_text(f"worker 1 is on this host\n{line}\n")
        tell_ends(own, set(), said.append)
    assert said == ["host b ended with code 20: cordee: the disk is full"]
