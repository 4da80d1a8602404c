"""Two emulated hosts with one worker each, and how each system is started on them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from peers.systems import HERE, PEERS, Process, process

from cordee.twin.cluster import Cluster
from cordee.twin.commands import RunRequest, commands
from cordee.twin.network import COMMAND_S, namespace_of
from cordee.twin.registry import Registry
from cordee.twin.twin import Twin

HOSTS = 2
DEVICE = "eth0"
FIRST_PORT = 29500
"""Of the peers, where each one's ranks meet; a host's ports are its own, so all of them are free."""


@contextlib.contextmanager
def emulated() -> Iterator[Twin]:
    """Hosts without limits. What is killed with this process is cleared away by the next twin on this machine."""
    twin = Twin.up(Cluster.parse(f"{HOSTS} x"), Registry())
    try:
        yield twin
    finally:
        twin.down()


def give_speed(twin: Twin, bit_s: float | None) -> None:
    """All links, both ways, from now on; None: as fast as the machine copies."""
    for host in twin.cluster.names:
        twin.set(host, {"link": bit_s})


def sent_bytes(twin: Twin) -> dict[str, int]:
    """What each host has sent so far, as its link counts it: with all headers."""
    return {host: _sent(namespace_of(twin.name, host)) for host in twin.cluster.names}


def _sent(space: str) -> int:
    command = ["tc", "-n", space, "-s", "-j", "qdisc", "show", "dev", DEVICE, "root"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=True).stdout
    return int(json.loads(said)[0]["bytes"])


@contextlib.contextmanager
def cordee(twin: Twin, task: str, path: str, folder: Path) -> Iterator[list[Process]]:
    """A run of Cordée, by the command that a person gives on each host."""
    options = ("--threads", "1", "--plan", "sync=allreduce", "--set", f"task={task}", "--set", f"turns={path}")
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(process(command, {}, folder / f"said-cordee-{host}"))
            for host, command in commands(twin, RunRequest("train", HERE / "job.py", folder / "run", options)).items()
        ]


@contextlib.contextmanager
def started(twin: Twin, name: str, task: str, path: str, folder: Path) -> Iterator[list[Process]]:
    """A peer, by what `torchrun` would start on each host; its ranks introduce themselves by its name."""
    arguments = [sys.executable, str(HERE / PEERS[name].script), task, path, name]
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                process(twin.command(host, arguments), environment(twin, name, rank), folder / f"said-{name}-{host}")
            )
            for rank, host in enumerate(twin.cluster.names)
        ]


def environment(twin: Twin, name: str, rank: int) -> dict[str, str]:
    """That of a peer's rank; each is alone on its host."""
    hosts = twin.cluster.names
    world = {"WORLD_SIZE": len(hosts), "RANK": rank, "NODE_RANK": rank, "LOCAL_WORLD_SIZE": 1, "LOCAL_RANK": 0}
    meeting = {"MASTER_ADDR": hosts[0], "MASTER_PORT": FIRST_PORT + list(PEERS).index(name)}
    alone = {"OMP_NUM_THREADS": 1, "GLOO_SOCKET_IFNAME": DEVICE}
    return {key: str(value) for key, value in {**world, **meeting, **alone}.items()}
