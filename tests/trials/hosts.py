"""The hosts of a run: a launcher on each, on loopback or in a twin, as a user would start them."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from cordee.core.errors import CordeeError
from cordee.core.interpreter import python_module
from cordee.core.machine import listeners
from cordee.group.messages import Command
from cordee.runtime.commands import ask
from cordee.twin.cluster import Cluster
from cordee.twin.registry import Registry
from cordee.twin.twin import Twin
from harness import DEADLINE_S, Process, free_port, job_file, stat_of
from trials.drawn import Case

PORT = 29400
"""In a twin, where each host has its own."""


class Hosts:
    """The launchers of a run; that of the first host starts the coordinator."""

    def __init__(self, case: Case, out: Path, settings: dict[str, str]) -> None:
        """Nothing is started."""
        self.case, self._out, self._settings = case, out, settings
        self._twin: Twin | None = None
        self._started: list[subprocess.Popen[bytes]] = []
        self._processes: list[Process] = []
        self.names = [chr(ord("a") + number) for number in range(len(case.hosts))]

    @contextlib.contextmanager
    def up(self) -> Iterator[None]:
        """Their networks, if they have such; at the end nothing of them is left."""
        with contextlib.ExitStack() as ends:
            if self.case.twin:
                cluster = Cluster.parse(", ".join(f"workers={workers}" for workers in self.case.hosts))
                self._twin = Twin.up(cluster, Registry())
                ends.callback(self._twin.down)
            ends.callback(self.end)
            yield

    def start(self, gate: Path, hosts: Sequence[int], *, resume: bool = False) -> None:
        """A launcher on each host, with so many workers; they wait at the gate until there is such a file."""
        self.end()
        port = PORT if self._twin else free_port()
        words = python_module("cordee", "train")
        words += ["--out", str(self._out), "--plan", self.case.plan, "--threads", "1"]
        for name, value in {**self._settings, "awaits": str(gate)}.items():
            words += ["--set", f"{name}={value}"]
        words += ["--resume"] if resume else []
        self._started, self._processes = [], []
        for number, workers in enumerate(hosts):
            own = [*words, "--workers", str(workers)]
            if len(self.case.hosts) > 1:
                own += ["--rendezvous", f"{'a' if self._twin else '127.0.0.1'}:{port}"]
                own += ["--nodes", str(len(self.case.hosts))]
            if self._twin is not None:
                own += ["--token-file", str(self._twin.entry.token_file), "--trusted-network"]
            own += [str(job_file("steady"))]
            with self.log(number).open("ab") as log:
                command = self._twin.command(self.names[number], own) if self._twin is not None else own
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            self._started.append(process)
            found = stat_of(process.pid)
            self._processes.append(Process(process.pid, found[2] if found else -1))
            if number == 0 and len(self.case.hosts) > 1 and self._twin is None:
                deadline = time.monotonic() + DEADLINE_S
                while not listeners(port) and process.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.01)

    def log(self, number: int) -> Path:
        """What a host's launcher prints."""
        return self._out.with_name(f"{self._out.name}-{self.names[number]}.log")

    def plug(self, host: str, state: Literal["up", "down"]) -> None:
        """Pull the cable of a host, or put it back."""
        assert self._twin is not None
        self._twin.plug(host, state)

    def scale(self, workers: int) -> str:
        """Ask the run for so many workers; what it says."""
        try:
            return ask(self._out, Command("scale", workers))
        except CordeeError as error:  # it ends, or its coordinator has just been killed
            return f"refused: {error}"

    @property
    def first(self) -> Process:
        """The launcher of the first host."""
        return self._processes[0]

    def following(self) -> list[tuple[int, Process]]:
        """The launchers of the other hosts that are there."""
        return [(number, one) for number, one in enumerate(self._processes) if number and one.alive]

    def code(self) -> int | None:
        """How the launcher of the first host has ended; None as long as it has not."""
        return self._started[0].poll()

    def lingering(self, seconds: float) -> list[str]:
        """The hosts whose launchers have not ended within so long."""
        deadline = time.monotonic() + seconds
        for one in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(max(0.0, deadline - time.monotonic()))
        return [name for name, one in zip(self.names, self._started, strict=True) if one.poll() is None]

    def end(self) -> None:
        """Kill what is left of them."""
        for one in self._started:
            one.kill()
            one.wait(DEADLINE_S)
