"""What the tests of twins share: commands on hosts, and a look at what a twin leaves behind."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cordee.core.cgroup import control_group
from cordee.twin.registry import Entry, Registry
from cordee.twin.twin import Twin
from harness import DEADLINE_S, command, until

JOB = """
import time
import torch
from torch import nn
import cordee

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)).double()
    def forward(self, x):
        time.sleep(0.02 if self.training else 0.0)
        return self.layers(x.double())

def job(epochs: int = 2) -> cordee.Job:
    return cordee.Job(model=Net, loss=nn.functional.cross_entropy, data=cordee.data.digits(),
                      optimizer=lambda params: torch.optim.SGD(params, lr=0.1), batch=101, epochs=epochs)
"""
"""A step takes so long that something can happen at it; sums in fp64, so that results can be compared closely."""


@dataclass(frozen=True)
class Emulated:
    """A twin that is up."""

    name: str

    def exec(self, host: str, *words: str) -> subprocess.CompletedProcess[str]:
        """A command on a host, as a user gives it."""
        return command("twin", "exec", "--name", self.name, host, *words)

    @property
    def made(self) -> Twin:
        """It as a value, for what need not go through the command line."""
        registry = Registry()
        return Twin(registry.find(self.name), registry)

    def python(self, host: str, script: str, *words: str) -> str:
        """What a script on a host says."""
        done = subprocess.run(
            self.made.command(host, [sys.executable, "-c", script, *words]),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return done.stdout + done.stderr

    def say(self, *words: str) -> str:
        """`cordee twin WORDS` about this one; it must succeed."""
        done = command("twin", *words, "--name", self.name)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextlib.contextmanager
    def running(self, host: str, script: str, *words: str) -> Iterator[subprocess.Popen[str]]:
        """A script on a host that has said `ready`, and ends with the block."""
        command = self.made.command(host, [sys.executable, "-c", script, *words])
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None and process.stdout.readline() == "ready\n"
                yield process
            finally:
                process.kill()


Up = Callable[[str], Emulated]
"""Makes a twin of such hosts: what the fixture `up` gives."""


def opened(pid: int) -> set[Path]:
    """The files that a process has open."""
    with contextlib.suppress(OSError):
        return {path.readlink() for path in Path(f"/proc/{pid}/fd").iterdir()}
    return set()


def await_entry(process: subprocess.Popen[str], *, whole: bool = False) -> Entry:
    """The twin that a `cordee twin run` has made for itself, as soon as it is on record, or `whole`."""
    found: list[Entry] = []

    def look() -> bool:
        found[:] = [one for one in Registry().entries() if one.folder / "owner.lock" in opened(process.pid)]
        return process.poll() is not None or any((one.folder / "run").exists() or not whole for one in found)

    until(look)
    assert found, process.communicate(timeout=DEADLINE_S)
    return found[0]


# ------------------------------------------------------------- what is left of a twin


def namespaces(name: str) -> dict[str, int]:
    """The network namespaces of a twin, each with its number in the kernel."""
    found = {}
    folder = Path("/run/netns")
    for path in folder.iterdir() if folder.exists() else ():
        if path.name == f"cordee-{name}" or path.name.startswith(f"cordee-{name}-"):
            with contextlib.suppress(OSError):
                found[path.name] = path.stat().st_ino
    return found


def inhabitants(name: str, numbers: set[int]) -> list[int]:
    """Processes in these namespaces, or that were told of this twin."""
    folder = f"{Registry().folder / name}/".encode()
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and int(path.name) != os.getpid():
            with contextlib.suppress(OSError):
                words = (path / "cmdline").read_bytes()
                inside = (path / "ns" / "net").stat().st_ino in numbers
                if inside or f"cordee-{name}-".encode() in words or folder in words:
                    found.append(int(path.name))
    return found


def cables() -> set[str]:
    """The ends of cables in the machine's own network which bear names that a twin gives."""
    said = subprocess.run(
        ["ip", "-o", "link", "show", "type", "veth"], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    names = {line.split()[1].partition("@")[0].rstrip(":") for line in said.stdout.splitlines()}
    return {name for name in names if name.startswith(("to-", "eth", "veth"))}


def groups(name: str) -> list[Path]:
    """The control groups of a twin."""
    here = control_group("cpu")
    return sorted(here.mount.glob(f"**/cordee-{name}-*")) if here is not None else []


def left(name: str, numbers: set[int] | None = None, before: set[str] | None = None) -> dict[str, object]:
    """What there is of a twin that should be gone, by kind; `numbers` are those its namespaces had."""
    found: dict[str, object] = {
        "namespaces": sorted(namespaces(name)),
        "processes": inhabitants(name, numbers or set()),
        "cables": sorted(cables() - (before or set())),
        "groups": groups(name),
        "record": [one for one in [Registry().folder / name] if one.exists()],
    }
    return {kind: things for kind, things in found.items() if things}
