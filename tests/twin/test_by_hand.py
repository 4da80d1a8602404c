"""A twin in a person's hands: made, looked at, changed, taken down; and two of them at once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from cordee.core.cgroup import control_group
from harness import DEADLINE_S, command, start, until
from twin.emulated import Up, left, namespaces

SERVE = """
import socket, sys
server = socket.create_server(("10.213.77.2", 5000))
print("ready", flush=True)
while True:
    server.accept()[0].sendall(sys.argv[1].encode())
"""
ASK = """
import socket
try:
    print(socket.create_connection(("10.213.77.2", 5000), timeout=1.5).recv(100).decode())
except OSError as error:
    print(type(error).__name__)
"""


def limits(name: str, host: str) -> str:
    """What limits the host's link, at both of its ends."""
    ends = {f"cordee-{name}-{host}": "eth0", f"cordee-{name}": f"to-{host}"}
    words = (["tc", "-n", space, "qdisc", "show", "dev", device] for space, device in ends.items())
    one, other = (subprocess.run(one, capture_output=True, text=True, check=True).stdout for one in words)
    assert one.partition("root")[2] == other.partition("root")[2], "it is the same both ways"
    return one


def test_a_twin_is_made_used_and_taken_down(up: Up) -> None:
    twin = up("2 x cpu=0.75 link=100mbit, name=far cpu=0.25 link=10mbit")
    listed = {one["name"]: one["hosts"] for one in json.loads(command("twin", "list", "--json").stdout)}
    assert listed[twin.name] == [
        {"name": "a", "cpu": 0.75, "link": 100e6, "workers": 1},
        {"name": "b", "cpu": 0.75, "link": 100e6, "workers": 1},
        {"name": "far", "cpu": 0.25, "link": 10e6, "workers": 1},
    ]
    line = f"{twin.name}: name=a cpu=0.75 link=100mbit, name=b cpu=0.75 link=100mbit, name=far cpu=0.25 link=10mbit"
    assert line in command("twin", "list").stdout.splitlines()

    script = "import socket; print(socket.gethostname(), *map(socket.gethostbyname, ['a', 'b', 'far', 'localhost']))"
    said = twin.exec("far", sys.executable, "-c", script)
    assert said.stdout == "far 10.213.77.1 10.213.77.2 10.213.77.3 127.0.0.1\n", said.stderr
    assert twin.exec("b", "hostname").stdout == "b\n"
    assert Path("/etc/hosts").read_text().count("10.213.77") == 0, "only hosts of the twin see its names"

    assert twin.say("set", "b", "link=20mbit", "cpu=0.5") == "name=b cpu=0.5 link=20mbit\n"
    here = control_group("cpu")
    assert here is not None
    quota = here.mount / f"cordee-{twin.name}-b" / ("cpu.max" if here.version == 2 else "cpu.cfs_quota_us")
    assert quota.read_text().split()[0] == "10000"
    assert "rate 20Mbit" in limits(twin.name, "b")
    assert twin.say("set", "b", "link=max", "cpu=max") == "name=b\n"
    assert quota.read_text().split()[0] in ("max", "-1")
    assert "tbf" not in limits(twin.name, "b")

    with twin.running("b", SERVE, "b is here"):
        assert twin.python("a", ASK) == "b is here\n"
        twin.say("cut", "b")
        assert "TimeoutError" in twin.python("a", ASK)
        twin.say("mend", "b")
        until(lambda: twin.python("a", ASK) == "b is here\n")

    numbers = set(namespaces(twin.name).values())
    assert len(numbers) == 4
    assert command("twin", "down", twin.name).stdout == f"twin {twin.name} is gone\n"
    assert left(twin.name, numbers) == {}
    assert twin.name not in command("twin", "list", "--json").stdout
    again = command("twin", "down", twin.name)
    assert again.returncode == 2 and "there is no twin" in again.stderr


def test_a_command_on_a_host_is_that_command_and_no_other(up: Up) -> None:
    twin = up("1")
    assert twin.exec("a", "sh", "-c", "exit 7").returncode == 7
    with start("twin", "exec", "--name", twin.name, "a", "sh", "-c", "echo $$; sleep 1000") as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid, "nobody stands between it and the terminal"
        process.terminate()
        assert process.wait(DEADLINE_S) == -signal.SIGTERM
    unknown = twin.exec("a", "no-such-program", "--help")
    assert (unknown.returncode, unknown.stderr) == (127, "no-such-program: No such file or directory\n")
    own = twin.exec("a", "echo", "--name", "x", "-c", "--", "--help")
    assert own.stdout == "--name x -c -- --help\n", "words behind the host's name are the command's own"
    nowhere = twin.exec("z", "hostname")
    assert (nowhere.returncode, nowhere.stderr) == (2, "cordee: there is no host 'z'; the hosts are a.\n")


def test_what_cannot_be_set_is_refused_and_nothing_is_changed(up: Up) -> None:
    twin = up("link=10mbit")
    for words, message in {
        ("a", "link=10"): "link=10: expected a speed from 100kbit to 100gbit",
        ("a", "link"): "'set a link' is no action: expected",
        ("a", "workers=2"): "workers cannot be set while a host is up; link and cpu can",
        ("a", "lnk=1mbit"): "lnk cannot be set while a host is up; link and cpu can",
        ("z", "link=1mbit"): "there is no host 'z'; the hosts are a.",
    }.items():
        done = command("twin", "set", "--name", twin.name, *words)
        assert done.returncode == 2 and message in done.stderr, words
    assert f"{twin.name}: name=a link=10mbit" in command("twin", "list").stdout.splitlines()
    taken = command("twin", "up", "--hosts", "1", "--name", twin.name)
    assert taken.returncode == 2 and f"there is a twin {twin.name} already" in taken.stderr
    assert twin.exec("a", "hostname").stdout == "a\n", "the one that is there is still whole"


def test_two_twins_do_not_meet(up: Up) -> None:
    one, two = up("2"), up("2")
    with one.running("b", SERVE, "one"):
        assert one.python("a", ASK) == "one\n"
        assert two.python("a", ASK) == "ConnectionRefusedError\n"
        with two.running("b", SERVE, "two"):
            assert (one.python("a", ASK), two.python("a", ASK)) == ("one\n", "two\n")
            two.made.plug("b", "down")
            assert (one.python("a", ASK), two.python("a", ASK)) == ("one\n", "TimeoutError\n")
            two.made.down()
        assert one.python("a", ASK) == "one\n"
