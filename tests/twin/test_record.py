"""The record of a twin says what is there: two changes at once, and removals that come to nothing."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cordee.core.errors import CordeeError
from cordee.twin import network
from cordee.twin.cluster import Cluster
from cordee.twin.network import Command
from cordee.twin.processes import inhabitants
from cordee.twin.registry import Registry
from cordee.twin.twin import Twin, sweep
from harness import DEADLINE_S, command
from twin.emulated import Up, groups, left, namespaces

NO_PROGRAMS = {**os.environ, "PATH": "/nowhere"}


def test_a_twin_that_cannot_be_removed_is_removed_by_the_next_command(up: Up) -> None:
    twin = up("2 x link=10mbit cpu=0.5")
    inside = twin.exec("a", sys.executable, "-m", "cordee", "twin", "down", twin.name)
    assert inside.returncode == 2 and f"this command runs on a host of twin {twin.name}" in inside.stderr
    switch = ["ip", "netns", "exec", f"cordee-{twin.name}", sys.executable, "-m", "cordee", "twin", "down", twin.name]
    done = subprocess.run(switch, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 2 and f"this command runs on a host of twin {twin.name}" in done.stderr

    without = command("twin", "down", twin.name, env=NO_PROGRAMS)
    assert without.returncode == 1 and without.stdout == ""
    assert f"twin {twin.name} is not gone: cordee-{twin.name}, cordee-{twin.name}-a, " in without.stderr
    assert "ip could not be started: No such file or directory" in without.stderr
    assert (Registry().folder / twin.name).exists()
    assert twin.name not in command("twin", "list").stdout and left(twin.name) == {}


def test_changes_at_the_same_time_are_not_lost(up: Up, tmp_path: Path) -> None:
    twin = up("2 x link=10mbit cpu=0.5")
    one, other = twin.made, twin.made
    one.set("a", {"link": 20e6})
    other.set("b", {"link": 30e6})
    assert str(twin.made.cluster) == "name=a cpu=0.5 link=20mbit, name=b cpu=0.5 link=30mbit", "neither is lost"
    script = f"""
from cordee.twin.registry import Registry
from cordee.twin.twin import Twin
registry = Registry()
Twin(registry.find({twin.name!r}), registry).set("a", {{"link": None}})
"""
    with Registry().locked():
        changing = subprocess.Popen([sys.executable, "-c", script])
        with pytest.raises(subprocess.TimeoutExpired):
            changing.wait(1.0)
        assert twin.made.cluster.host("a").link == 20e6
    assert changing.wait(DEADLINE_S) == 0 and twin.made.cluster.host("a").link is None

    for group in groups(twin.name):
        group.rmdir()
    groupless = command("twin", "set", "--name", twin.name, "a", "cpu=0.25")
    assert groupless.returncode == 1 and "host a has no CPU share: it has no control group" in groupless.stderr
    assert twin.made.cluster.host("a").cpu == 0.5

    (tmp_path / "signal.py").write_text("open('taken', 'w')")
    entering = twin.made.command("a", ["hostname"])
    said = subprocess.run(entering, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert said.stdout == "a\n" and not (tmp_path / "taken").exists(), "no module of the folder we stand in"


ALONE = "mount --make-rprivate / && mount -t tmpfs none /run && mkdir /run/netns && exec sh -c "
"""What is said to `unshare -m`: all twins of this machine are out of sight, and stay as they are."""


def test_a_record_that_cannot_be_read_is_kept_and_named(able: None) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare (util-linux)")
    name, cordee = f"r{secrets.token_hex(4)}", f"{sys.executable} -m cordee twin"
    script = (
        f"{cordee} up --hosts 1 --name {name}; mkdir /run/cordee-twin/bad; echo null > /run/cordee-twin/bad/twin.json; "
        f"{cordee} down {name}; echo $?; rm -r /run/cordee-twin/bad; {cordee} down {name}"
    )
    alone = ["unshare", "-m", "sh", "-c", f"{ALONE} {shlex.quote(script)}"]
    done = subprocess.run(alone, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    gone = f"twin {name} is gone"
    assert done.stdout.splitlines() == [f"twin {name} is up: name=a", "1", gone], done.stderr
    assert done.stderr.count("twin bad: /run/cordee-twin/bad/twin.json is not a record of a twin") == 1
    assert "Traceback" not in done.stderr and left(name) == {}


def test_whoever_comes_while_a_twin_is_removed_is_ended(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    made = up("cpu=0.5").made
    space, (group,) = network.namespace_of(made.name, "a"), groups(made.name)
    removing = network.commands_to_remove
    late = [
        ("sh", "-c", f"ip netns exec {space} sleep 1000 >/dev/null 2>&1 &"),
        ("sh", "-c", f"until ip netns pids {space} | grep -q .; do sleep 0.01; done"),
        ("sh", "-c", f"sleep 1000 >/dev/null 2>&1 & echo $! > {group}/cgroup.procs"),
    ]

    def with_late(twin: str, hosts: tuple[str, ...]) -> list[Command]:
        return [*late, *removing(twin, hosts)]

    monkeypatch.setattr(network, "commands_to_remove", with_late)
    numbers = network.namespaces(made.name)
    made.down()
    assert inhabitants(numbers.values()) == set()
    assert left(made.name, set(namespaces(made.name).values())) == {}


def test_what_cannot_be_swept_stays_on_record(able: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(tmp_path / "twins")
    name = f"s{os.getpid()}"
    with registry.locked():
        entry = registry.add(name, Cluster.parse("1"), namespaces=True)
        registry.disown(entry)
        network.execute(network.commands_to_make(name, entry.cluster))
        try:
            monkeypatch.setenv("PATH", "/nowhere")
            assert sweep(registry) == [] and registry.entries() == [entry]
            with pytest.raises(
                CordeeError, match=rf"twin {name} is not gone: cordee-{name}, cordee-{name}-a could not"
            ):
                Twin(entry, registry)._remove()
        finally:
            monkeypatch.undo()
            assert sweep(registry) == [name]
    assert namespaces(name) == {} and not entry.folder.exists()
