"""The contenders of `network.py`: what each one is, and how it is started on the hosts of a twin."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.hosts import DEVICE, HOSTS, give_speed, sent_bytes
from peers.pace import Conductor, processor_s
from peers.systems import HERE, INSTALL, process

from cordee.core.plan import Plan
from cordee.twin.cluster import Cluster
from cordee.twin.commands import RunRequest, commands
from cordee.twin.registry import Registry
from cordee.twin.twin import Twin

CPU = 0.75
"""Cores' worth of processor time of each host."""
WRITTEN_S = 1.0
"""Events are in the file after this time."""
TURN_S = 300.0
"""How long a turn with its evaluation may take at most: a contender that hangs is left out then."""
PAUSE_S = 1_200.0
"""How long Cordée's workers may wait between two turns."""
SYNCHRONOUS = "sync=allreduce"


@dataclass(frozen=True)
class Contender:
    """One way to train over slow links."""

    name: str
    words: str
    """What it is; stands in the recorded result."""
    period: int = 1
    """Steps from one merge to the next: turns are multiples of it, so that each has as many merges."""
    script: str = ""
    """A peer's; Cordée's plan is its name."""
    setting: str = ""
    module: str = "torch"
    """What has to be installed for it."""
    whole_steps: int = 0
    """Its first steps, which send whole gradients as `ddp` does."""
    adapts: bool = False
    """Whether it measures the link and decides by that: it is started anew for each speed."""
    link_changes_updates: bool = False
    """Whether a step's update depends on the link: it is trained at each speed."""

    @property
    def missing(self) -> str | None:
        """Why it cannot take part, or None."""
        if importlib.util.find_spec(self.module) is None:
            return f"{self.module} is not installed: {INSTALL}"
        return None


PEERS = (
    Contender("ddp", "DistributedDataParallel in a loop by hand", 1, "network_ddp.py", "plain"),
    Contender(
        "ddp powersgd",
        "the same with PyTorch's powerSGD_hook: rank 4, whole gradients in the first 10 steps, one bucket",
        script="network_ddp.py",
        setting="powersgd",
        whole_steps=10,
    ),
    *(
        Contender(
            f"accelerate local {every}",
            f"Hugging Face Accelerate's LocalSGD, local_sgd_steps={every}",
            every,
            "network_accelerate.py",
            str(every),
            "accelerate",
        )
        for every in (8, 50)
    ),
    Contender(
        "torchft diloco 50",
        "torchft's DiLoCo, sync_every=50, one fragment in buckets; outer SGD with lr 0.7, Nesterov's momentum 0.9",
        50,
        "network_torchft.py",
        "50",
        "torchft",
    ),
)
"""All get the model, optimizer and global batches that Cordée gets, gather a batch in one call, and use gloo."""


def ours(plan: str) -> Contender:
    """Cordée under a plan; `PlanError` if it is none."""
    parsed = Plan.parse(plan)
    adapts = parsed.sync == "auto"
    lossy = adapts and parsed.faithful == "any"
    period = parsed.local_steps if parsed.sync == "local" else 1
    return Contender(plan, f"Cordée, --plan {plan}", period, adapts=adapts, link_changes_updates=lossy)


@dataclass(frozen=True)
class Turn:
    """What was measured of a few steps."""

    steps: int
    seconds: float
    kept: str | None
    """The file with the model after them, where the task keeps it; writing it is not part of the time."""
    sent_bytes: int | None
    """By the host that sent most, headers included; None where the link is not limited."""


class Stage:
    """Two hosts, on which one contender at a time trains."""

    def __init__(self) -> None:
        """No hosts yet."""
        self._ports = itertools.cycle(range(29_400, 29_900, 10))  # sockets of the contender before may linger

    def __enter__(self) -> Stage:
        """Make the hosts. What is killed with this process is cleared away by the next twin on this machine."""
        self._twin = Twin.up(Cluster.parse(f"{HOSTS} x cpu={CPU}"), Registry())
        return self

    def __exit__(self, *error: object) -> None:
        """Remove them."""
        self._twin.down()

    @contextlib.contextmanager
    def trained(self, contender: Contender, task: str, mbit_s: float | None = None) -> Iterator[Running]:
        """The contender on both hosts, before its first step.

        It starts and ends without limits of the processor and of links: both are faster so. `Running.give` sets them.
        One that measures the link at its start is given its speed, `mbit_s`, before.
        """
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="network-")))
            stack.callback(self._clear)
            processes = stack.enter_context(contextlib.ExitStack())
            conductor = stack.enter_context(Conductor(folder, TURN_S))  # left before the processes, which end then
            self._free()
            stack.callback(self._free)
            if contender.adapts and mbit_s is not None:
                give_speed(self._twin, mbit_s * 1e6)
            words = [task, conductor.path]
            start = self._peer if contender.script else self._cordee
            running = [
                processes.enter_context(process(command, environment, folder / f"said-{host}"))
                for host, (command, environment) in start(contender, words, folder).items()
            ]
            system = contender.name if contender.script else "cordee"
            conductor.gather([system], HOSTS, lambda: all(one.poll() is None for one in running))
            yield Running(self._twin, conductor, system, folder / "run", [one.pid for one in running])

    def _cordee(self, contender: Contender, words: Sequence[str], folder: Path) -> dict[str, tuple[list[str], dict]]:
        task, path = words
        options = ("--threads", "1", "--deadline", f"{PAUSE_S:.0f}", "--plan", contender.name)
        options += ("--set", f"task={task}", "--set", f"turns={path}")
        request = RunRequest("train", HERE / "network_job.py", folder / "run", options, next(self._ports))
        return {host: (command, _paths()) for host, command in commands(self._twin, request).items()}

    def _peer(self, contender: Contender, words: Sequence[str], folder: Path) -> dict[str, tuple[list[str], dict]]:
        """By what `torchrun` would start on each host."""
        command = [sys.executable, str(HERE / contender.script), *words, contender.name, contender.setting]
        hosts, port = self._twin.cluster.names, next(self._ports)
        alone = {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": DEVICE}
        alone |= {"WORLD_SIZE": str(len(hosts)), "MASTER_ADDR": hosts[0], "MASTER_PORT": str(port), **_paths()}
        return {
            host: (self._twin.command(host, command), {**alone, "RANK": str(rank), "NODE_RANK": str(rank)})
            for rank, host in enumerate(hosts)
        }

    def _free(self) -> None:
        """No limits."""
        give_speed(self._twin, None)
        give_cpu(self._twin, None)

    def _clear(self) -> None:
        """What a contender has left: processes, where it failed, and the folders of hosts."""
        for host in self._twin.cluster.names:
            self._twin.end_processes(host)
            shutil.rmtree(self._twin.entry.folder / f"out-{host}", ignore_errors=True)


class Running:
    """A contender that waits for its next turn."""

    def __init__(self, twin: Twin, conductor: Conductor, system: str, folder: Path, roots: Sequence[int]) -> None:
        """Nothing is limited yet. `folder` is that of Cordée's run; all processes come from the `roots`."""
        self._twin, self._conductor, self._system, self._folder = twin, conductor, system, folder
        self._roots = roots
        self._limited = False

    def give(self, mbit_s: float | None) -> None:
        """The speed of all links, both ways, from now on, and the hosts' part of the processor."""
        give_cpu(self._twin, CPU)
        give_speed(self._twin, None if mbit_s is None else mbit_s * 1e6)
        self._limited = mbit_s is not None

    def turn(self, steps: int) -> Turn:
        """So many steps."""
        before = sent_bytes(self._twin) if self._limited else {}
        seconds, kept = self._conductor.kept_turn(self._system, steps)
        after = sent_bytes(self._twin) if self._limited else {}
        return Turn(steps, seconds, kept, max((after[host] - before[host] for host in after), default=None))

    def processor_s(self) -> dict[int, float]:
        """Processor time until now, by process."""
        return {pid: used for root in self._roots for pid, used in processor_s(root).items()}

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What Cordée has written down of this kind until now."""
        time.sleep(WRITTEN_S)
        lines = (self._folder / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]


def give_cpu(twin: Twin, cpu: float | None) -> None:
    """Cores' worth of processor time of every host; None: all there is."""
    for host in twin.cluster.names:
        twin.set(host, {"cpu": cpu})


def _paths() -> dict[str, str]:
    """Where the scripts find the tasks that they share with us."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH"))))}
