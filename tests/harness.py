"""What the tests of whole runs share: start a run, read its folder, compare it with another, find its processes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import load_file

from cordee.core.eventlog import read_events
from cordee.core.events import Listener
from cordee.core.plan import Plan
from cordee.runtime.launch import Launch
from cordee.runtime.spec import Target
from cordee.runtime.start import run
from cordee.watch.audit.prove import audit
from warmer import untraced

JOBS = Path(__file__).parent / "jobs"
DEADLINE_S = 120.0
"""How long anything in a test may wait for anything else; pytest itself ends a test after twice that time."""


@dataclass(frozen=True)
class Run:
    """A run that has ended, read from its folder."""

    out: Path

    @cached_property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "result.json").read_text())
        return found

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        return [msgspec.to_builtins(one) for one in read_events(self.out / "events.jsonl")]

    def of(self, name: str) -> list[dict[str, Any]]:
        """The events of one name."""
        return [event for event in self.events if event["event"] == name]

    @property
    def losses(self) -> list[float]:
        return [event["loss"] for event in self.of("step")]

    @cached_property
    def tensors(self) -> dict[str, Any]:
        """The trained model: parameters and buffers."""
        return dict(load_file(self.out / "model.safetensors"))


def job_file(job: str | Path) -> Path:
    """A job of `tests/jobs` by its name; a path stays."""
    return JOBS / f"{job}.py" if isinstance(job, str) else job


def train(  # noqa: PLR0913 (what a run is asked for)
    job: str | Path,
    out: Path,
    *,
    workers: int = 1,
    plan: str = "auto",
    resume: bool = False,
    listen: Listener = lambda event: None,
    deadline_s: float = DEADLINE_S,
    device: str = "auto",
    traced: bool = False,
    **settings: Any,
) -> Run:
    """What `cordee train JOB --workers N --plan P --set name=value ...` does, in this process.

    `traced`: from the warm server too, the run leaves its model as a program, which `cordee.load` reads.
    """
    with contextlib.suppress(NotADirectoryError):  # where no warm server can be, none is told
        untraced(out).unlink(missing_ok=True) if traced else untraced(out).touch()
    target = Target("job", str(job_file(job)), {name: str(value) for name, value in settings.items()})
    # One thread: several tests' threads on few cores would wait for each other more than they compute.
    more: dict[str, Any] = {"resume": resume, "threads": 1, "deadline_s": deadline_s, "device": device}
    run(Launch(target, workers, Plan.parse(plan), out, **more), listen)
    return Run(out)


def run_script(script: Path, out: Path, *arguments: str, workers: int = 1, plan: str = "auto") -> Run:
    """What `cordee run SCRIPT ARGUMENTS --workers N` does, in this process."""
    target = Target("script", str(script), arguments=arguments)
    run(Launch(target, workers, Plan.parse(plan), out, threads=1, deadline_s=DEADLINE_S), lambda event: None)
    return Run(out)


def command(*arguments: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """The `cordee` command as users type it."""
    return subprocess.run(
        [sys.executable, "-m", "cordee", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        **more,
    )


def start(*arguments: str | Path, **more: Any) -> subprocess.Popen[str]:
    """The `cordee` command, left running."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-m", "cordee", *map(str, arguments)], text=True, **{**pipes, **more})


def until(what: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Wait until `what()` is true."""
    deadline = time.monotonic() + deadline_s
    while not what():
        assert time.monotonic() < deadline, "waited for too long"
        time.sleep(0.01)


def free_port() -> int:
    """A port of this machine where nobody listens, and that no connection or `port 0` of another test is given."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(100):
        port = random.SystemRandom().randrange(lowest // 2, lowest - 1)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


# ------------------------------------------------------------- comparing


def assert_same(run: Run, reference: Run, *, loss: float = 1e-12, tensor: float | None = 1e-9) -> None:
    """Every step's loss (relative), the trained tensors (absolute), and the samples of every step are the same.

    And the record of the run proves it: a few milliseconds.
    """
    assert_audited(run)
    assert [event["step"] for event in run.of("step")] == [event["step"] for event in reference.of("step")]
    assert [event["samples"] for event in run.of("step")] == [event["samples"] for event in reference.of("step")]
    np.testing.assert_allclose(run.losses, reference.losses, rtol=loss, atol=0)
    for name in ("steps", "epochs", "samples", "order_sha256"):
        assert run.result[name] == reference.result[name], name
    assert (run.result["samples_lost"], run.result["samples_repeated"]) == (0, 0)
    if tensor is not None:
        assert distance(run, reference) <= tensor
    for part in ("validation", "test"):
        assert run.result[part].keys() == reference.result[part].keys()
        for name, value in run.result[part].items():
            assert abs(value - reference.result[part][name]) <= (1e-9 if tensor is not None else 1e-2), (part, name)


def assert_exact(run: Run, reference: Run, *, loss: float = 1e-12, tensor: float = 1e-9) -> None:
    """As `assert_same`, of a run that computed some steps again: the last loss of each counts."""
    assert_audited(run)
    losses = {event["step"]: event["loss"] for event in run.of("step")}
    np.testing.assert_allclose([losses[step] for step in sorted(losses)], reference.losses, rtol=loss, atol=0)
    for name in ("steps", "epochs", "samples", "order_sha256"):
        assert run.result[name] == reference.result[name], name
    assert (run.result["samples_lost"], run.result["samples_repeated"]) == (0, 0)
    assert distance(run, reference) <= tensor


def assert_audited(run: Run) -> None:
    """The run's record proves by itself that each sample and step counted once, and that all workers end equal."""
    found = audit(read_events(run.out / "events.jsonl"))
    assert found.proven, (found.findings, found.missing)


def distance(run: Run, reference: Run) -> float:
    """The largest difference of any number of the two trained models."""
    assert run.tensors.keys() == reference.tensors.keys()
    return max(float(np.abs(run.tensors[name] - reference.tensors[name]).max()) for name in run.tensors)


# ------------------------------------------------------------- processes


@dataclass(frozen=True)
class Process:
    """A process, told from a later one with the same number by the time it was started."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        found = stat_of(self.pid)
        return found is not None and found[2] == self.started and found[0] not in "ZX"


def stat_of(pid: int) -> tuple[str, int, int] | None:
    """State, parent and start time of a process; None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1]), int(fields[19])


def processes() -> Iterator[tuple[Process, int]]:
    """Every living process and its parent's number."""
    for name in os.listdir("/proc"):
        found = stat_of(int(name)) if name.isdigit() else None
        if found is not None and found[0] not in "ZX":
            yield Process(int(name), found[2]), found[1]


def descendants(*roots: int) -> set[Process]:
    """The living children of these processes, and their children, and so on."""
    table = list(processes())
    found: set[Process] = set()
    parents = set(roots)
    while parents:
        children = {process for process, parent in table if parent in parents} - found
        found |= children
        parents = {child.pid for child in children}
    return found


def marked(mark: str) -> set[Process]:
    """The living processes that were started with `mark` in their environment, or forked from one that was."""
    found = set()
    for process, _ in processes():
        try:
            environment = Path(f"/proc/{process.pid}/environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in environment:
            found.add(process)
    return found
