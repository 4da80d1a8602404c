"""Turns: several systems are alive at once, and each computes a few steps while the others wait in a blocking read."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

STARTING_S = 120.0
"""How long all systems together may take until they are ready for their first step."""
CHUNK_S = 120.0
"""How long a chunk of steps may take."""


class Pace:
    """A rank's side: count steps, and wait at the end of every chunk until it is our turn again."""

    def __init__(
        self,
        path: str,
        system: str,
        rank: int,
        *,
        settle: Callable[[], object] | None = None,
        keep: Callable[[], str] | None = None,
    ) -> None:
        """Say who we are, and wait for the first turn. `settle` waits for a device that computes behind our back.

        `keep` writes the first rank's model into a file after each turn, outside of the turn's time.
        """
        self._settle, self._keep = settle, keep if rank == 0 else None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._lines = self._socket.makefile("r")
        self._left = 0
        self._began = 0.0
        self._send({"system": system, "rank": rank})
        self._wait()

    @property
    def ended(self) -> bool:
        """Whether there will be no further turn."""
        return self._left == 0

    def step(self) -> None:
        """A step was done."""
        self._left -= 1
        if self._left == 0:
            if self._settle is not None:
                self._settle()
            # On Linux this clock is the same in all processes.
            message: dict[str, Any] = {"began": self._began, "ended": time.perf_counter()}
            if self._keep is not None:
                message["kept"] = self._keep()
            self._send(message)
            self._wait()

    def _wait(self) -> None:
        self._left = int(self._lines.readline() or 0)
        self._began = time.perf_counter()

    def _send(self, message: dict[str, Any]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")


class Conductor:
    """Gives the turns, and takes the times: from the first rank that begins to the last that ends."""

    def __init__(self, folder: Path, chunk_s: float = CHUNK_S) -> None:
        """Listen in `folder`; its path has to be short, as those of sockets are. A turn takes `chunk_s` at most."""
        self._chunk_s = chunk_s
        self.path = str(folder / "turns")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(16)
        self._ranks: dict[str, list[tuple[socket.socket, Any]]] = {}

    def __enter__(self) -> Conductor:
        """Let everybody go at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """No further turn: a closed connection says so."""
        self._listener.close()
        for ranks in self._ranks.values():
            for connection, lines in ranks:
                lines.close()
                connection.close()

    def gather(self, systems: Sequence[str], ranks: int, running: Callable[[], bool]) -> None:
        """Wait until all ranks of all systems are ready; `running` says whether there is anything to wait for."""
        deadline = time.monotonic() + STARTING_S
        self._listener.settimeout(0.2)
        missing = len(systems) * ranks
        while missing:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                if time.monotonic() > deadline or not running():
                    came = {name: len(self._ranks.get(name, [])) for name in systems}
                    why = f"{STARTING_S:.0f} s have passed" if running() else "a process has ended"
                    raise RuntimeError(f"{why}; of {ranks} ranks each, {came} came to their first step") from None
                continue
            missing -= 1
            connection.settimeout(self._chunk_s)
            lines = connection.makefile("r")
            self._ranks.setdefault(json.loads(lines.readline())["system"], []).append((connection, lines))
        assert {name: len(found) for name, found in self._ranks.items()} == dict.fromkeys(systems, ranks)

    def turn(self, system: str, steps: int) -> float:
        """Let `system` compute `steps` steps; returns the seconds that they took."""
        return self.kept_turn(system, steps)[0]

    def kept_turn(self, system: str, steps: int) -> tuple[float, str | None]:
        """The same, and the file with the model after them, where the first rank keeps it."""
        try:
            for connection, _ in self._ranks[system]:
                connection.sendall(b"%d\n" % steps)
        except BrokenPipeError as error:
            raise RuntimeError(f"a rank of {system} ended before its turn") from error
        said = [lines.readline() for _, lines in self._ranks[system]]
        if not all(said):
            raise RuntimeError(f"a rank of {system} ended in its turn")
        told = [json.loads(line) for line in said]
        seconds = float(max(one["ended"] for one in told) - min(one["began"] for one in told))
        return seconds, next((str(one["kept"]) for one in told if "kept" in one), None)


def processor_s(root: int) -> dict[int, float]:
    """Processor time of a process and of all that came from it, by process."""
    parents, used = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return {pid: used[pid] for pid in family if pid in used}


def spent_s(before: dict[int, float], after: dict[int, float]) -> float:
    """What was used between two looks; a process that has gone in between is left out, one that has come is not."""
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
