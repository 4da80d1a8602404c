"""The systems of `recovery.py` that lose workers: how each is started, and how it gets another worker."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from peers.losing_figures import Worker, read

from cordee.core.eventlog import read_events
from cordee.core.events import CoordinatorEvent

HERE = Path(__file__).parent
SIZE = 3
STARTING_S, ENDING_S = 120.0, 30.0


def wait_until(what: Callable[[], object], seconds: float = STARTING_S) -> None:
    """Wait until it is true."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited for {seconds:.0f} s in vain")
        time.sleep(0.005)


def alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class System:
    """Three workers on this host, each of which writes a file of its own into the folder."""

    name, words, module = "", "", "torch"
    restarts_all = False
    """Whether the loss of one worker ends the others too."""

    def __init__(self, folder: Path) -> None:
        """Nothing is started."""
        self.folder = folder
        self.folder.mkdir(parents=True)
        self._started: list[subprocess.Popen[bytes]] = []

    @classmethod
    def missing(cls) -> str:
        """Why it cannot take part; empty if it can."""
        found = importlib.util.find_spec(cls.module) is not None
        return "" if found else f"{cls.module} is not installed: pip install --constraint constraints.txt {cls.module}"

    def start(self) -> None:
        """Start it."""

    def replace(self, rank: int) -> None:
        """A worker of this rank was lost; most systems start another one by themselves."""

    @property
    def coordinator(self) -> int:
        """The process that all others depend on."""
        return self._started[0].pid

    def workers(self) -> list[Worker]:
        """All that there ever were."""
        return read(self.folder)

    def living(self) -> list[Worker]:
        """Those whose process is there."""
        return [one for one in self.workers() if alive(one.pid)]

    @contextlib.contextmanager
    def running(self) -> Iterator[System]:
        """Started, with every worker in its first steps; at the end nothing of it is left."""
        try:
            self.start()
            wait_until(lambda: sum(len(one.commits) > 2 for one in self.living()) == SIZE)
            yield self
        finally:
            self.end()

    def await_all(self) -> None:
        """Wait until all workers are there, and have committed a step."""
        wait_until(lambda: sum(bool(one.commits) for one in self.living()) >= SIZE)

    def kill_one(self, draw: random.Random) -> tuple[float, Worker]:
        """SIGKILL to a worker, once all are there; when, and which."""
        self.await_all()
        victim = draw.choice([one for one in self.living() if one.commits])
        os.kill(victim.pid, signal.SIGKILL)
        return time.time(), victim

    def end(self) -> None:
        """Kill what there is of it."""
        for process in self._started:
            process.kill()
            process.wait(ENDING_S)
        for one in self.living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)

    def _launch(self, *words: str | Path, **environment: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"said-{len(self._started)}").open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, *map(str, words)],
                env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment},
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        self._started.append(process)
        return process


class Cordee(System):
    """Ours."""

    name, words = "cordee", "replace=true, with a warm server; checkpoints every 50 steps"

    def start(self) -> None:
        """By its command."""
        words = ["--workers", str(SIZE), "--threads", "1", "--out", self.folder / "run", "--plan", "replace=true"]
        words += ["--set", f"folder={self.folder}", HERE / "losing_job.py"]
        self._launch("-m", "cordee", "train", *words)

    @property
    def coordinator(self) -> int:
        """A process of its own, which the launcher starts again."""
        record = read_events(self.folder / "run" / "events.jsonl")
        return [one.pid for one in record if isinstance(one, CoordinatorEvent)][-1]

    def finish(self) -> None:
        """Let it come to its end."""
        (self.folder / "stop").touch()
        wait_until(lambda: self._started[0].poll() is not None, ENDING_S)


class Torchrun(System):
    """The launcher of PyTorch, with a snapshot in the script."""

    name, words = "torchrun", "DDP by hand; a snapshot every 50 steps; --max-restarts; monitored every 0.1 s"
    restarts_all = True

    def start(self) -> None:
        """On this host alone."""
        words = [f"--nproc-per-node={SIZE}", "--max-restarts=100", "--monitor-interval=0.1", "--standalone"]
        self._launch("-m", "torch.distributed.run", *words, HERE / "losing_ddp.py", self.folder)


class Torchft(System):
    """Replica groups of one rank."""

    name, words, module = (
        "torchft",
        "replica groups of one rank, which wait 1 s for a lost one; its lighthouse with the timeouts of its class; "
        "a lost group is replaced, with the next quorum, by one that has imported all and waits",
        "torchft",
    )

    def start(self) -> None:
        """The lighthouse, then the groups, and one that waits."""
        self._launch(HERE / "losing_torchft.py", "lighthouse", found := self.folder / "address")
        wait_until(lambda: found.exists() and found.read_text())
        self._address = found.read_text()
        for rank in range(SIZE):
            self._launch(HERE / "losing_torchft.py", self.folder, str(rank), str(SIZE), self._address)
        self._spares: dict[int, Path] = {}
        for rank in range(SIZE):
            self._spare(rank)

    def _spare(self, rank: int) -> None:
        self._spares[rank] = self.folder / f"join-{len(self._started)}"
        words = [self.folder, str(rank), str(SIZE), self._address, self._spares[rank]]
        self._launch(HERE / "losing_torchft.py", *words)

    def replace(self, rank: int) -> None:
        """The one that waits for this rank joins, and another one waits."""
        wait_until(self._spares[rank].with_name(self._spares[rank].name + ".ready").exists)
        self._spares[rank].touch()
        self._spare(rank)


SYSTEMS: dict[str, type[System]] = {one.name: one for one in (Cordee, Torchrun, Torchft)}
