"""Files sent between emulated hosts, with token and TLS: all have all, and each link carries what it should."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordee.twin.network import address_of, namespace_of
from exchanging import files_below, make_folder
from harness import DEADLINE_S
from twin.emulated import Emulated, Up

SIZE = 3_000_000
NEAR = 0.08
"""Headers of TCP, IP and Ethernet, TLS, and the messages."""


def link_bytes(twin: Emulated, host: str) -> int:
    """What has left a host."""
    words = ["tc", "-n", namespace_of(twin.name, host), "-s", "-j", "qdisc", "show", "dev", "eth0", "root"]
    return int(json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)[0]["bytes"])


@contextlib.contextmanager
def receiving(twin: Emulated, hosts: str, folder: Path) -> Iterator[list[str]]:
    """`cordee data receive --keep` on these hosts; where they listen."""
    made, token = twin.made, twin.made.entry.token_file
    with contextlib.ExitStack() as stack:
        places = []
        for host in hosts:
            place = f"{address_of(made.cluster, host)}:0"
            words = ["data", "receive", folder / host, "--listen", place, "--token-file", token, "--keep"]
            command = made.command(host, [sys.executable, "-m", "cordee", *map(str, words)])
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            assert process.stdout is not None
            places.append(process.stdout.readline().split()[2])
        yield places


@pytest.mark.parametrize("how", ["chain", "broadcast"])
def test_every_host_has_all_and_no_link_carries_it_twice(how: str, up: Up, tmp_path: Path) -> None:
    twin = up("3 x link=1000mbit")
    data = make_folder(tmp_path / "data", {"x": SIZE - 1000, "sub/y": 1000})
    with receiving(twin, "bc", tmp_path) as places:
        before = {host: link_bytes(twin, host) for host in "abc"}
        options = ["--to", ",".join(places), "--how", how, "--token-file", twin.made.entry.token_file]
        words = [sys.executable, "-m", "cordee", "data", "send", data, *options]
        done = subprocess.run(
            twin.made.command("a", [*map(str, words)]),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        sent = {host: link_bytes(twin, host) - before[host] for host in "abc"}
        for host in "bc":
            assert files_below(tmp_path / host / "data") == files_below(data)
        once = {"chain": {"a": 1, "b": 1, "c": 0}, "broadcast": {"a": 2, "b": 0, "c": 0}}[how]
        for host, times in once.items():
            assert times * SIZE <= sent[host] <= (times + NEAR) * (1 + NEAR) * SIZE, sent
