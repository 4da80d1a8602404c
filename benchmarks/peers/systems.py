"""The systems that are compared: what each one is, and how it is started."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

WORKERS = 2
ENDING_S = 60.0
HERE = Path(__file__).parent
INSTALL = "pip install --constraint constraints.txt --editable '.[bench]'"

Process = subprocess.Popen[bytes]


@dataclass(frozen=True)
class Peer:
    """One system that Cordée is compared with."""

    words: str
    """What it is; stands in the recorded result."""
    script: str
    module: str = "torch"
    """What has to be installed for it."""
    starts: int = 2
    """How often both sides are started anew in a full run."""
    launches_its_workers: bool = False
    """Whether one process is started, which then starts its workers, instead of one process for each rank."""

    @property
    def missing(self) -> str | None:
        """Why it cannot take part, or None."""
        if importlib.util.find_spec(self.module) is None:
            return f"{self.module} is not installed: {INSTALL}"
        return None


PEERS = {
    "ddp": Peer(
        "a loop by hand with DistributedDataParallel; gathers a batch from memory in one call: the strictest peer",
        "ddp.py",
        starts=4,
    ),
    "ddp_loader": Peer(
        "a loop by hand with DistributedDataParallel, fed as PyTorch's tutorials teach it: DataLoader over a"
        " TensorDataset with DistributedSampler, samples collated one by one",
        "ddp_loader.py",
    ),
    "accelerate": Peer(
        "Hugging Face Accelerate (DDP); its DataLoader gathers a batch in one call", "accelerate_loop.py", "accelerate"
    ),
    "lightning": Peer(
        "Lightning's Trainer in its barebones mode (DDP); its DataLoader gathers a batch in one call",
        "lightning_loop.py",
        "lightning",
    ),
    "ray": Peer(
        "Ray Train's TorchTrainer (DDP); its DataLoader gathers a batch in one call. Ray's own processes are alive in"
        " Cordée's turns too",
        "ray_loop.py",
        "ray",
        launches_its_workers=True,
    ),
}
"""By name. All use gloo, gradient_as_bucket_view, and the model, data, loss and optimizer that Cordée gets."""


@contextlib.contextmanager
def cordee(task: str, path: str, folder: Path) -> Iterator[list[Process]]:
    """A run of Cordée, by its own command."""
    command = [sys.executable, "-m", "cordee", "train", str(HERE / "job.py"), "--workers", str(WORKERS)]
    command += ["--threads", "1", "--out", str(folder / "run"), "--set", f"task={task}", "--set", f"turns={path}"]
    with _processes([(command, {})], folder / "said") as running:
        yield running


@contextlib.contextmanager
def started(peer: Peer, task: str, path: str, name: str, folder: Path) -> Iterator[list[Process]]:
    """The peer's processes; they introduce themselves as `name`."""
    command = [sys.executable, str(HERE / peer.script), task, path, name]
    shared = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with contextlib.ExitStack() as stack:
        if peer.launches_its_workers:
            # A folder with a short path, because Ray keeps sockets in it; its logs go with it.
            own = stack.enter_context(tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True))
            commands = [([*command, own], {**shared, "RAY_USAGE_STATS_ENABLED": "0"})]
        else:
            commands = [(command, {**shared, **environment}) for environment in _ranks()]
        yield stack.enter_context(_processes(commands, folder / f"said-{name}"))


def _ranks() -> list[dict[str, str]]:
    """The environment of each rank, as `torchrun` would set it: all systems but Ray and Cordée read it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": WORKERS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": 0}
    world |= {"LOCAL_WORLD_SIZE": WORKERS}
    return [
        {key: str(value) for key, value in {**world, "RANK": rank, "LOCAL_RANK": rank}.items()}
        for rank in range(WORKERS)
    ]


@contextlib.contextmanager
def _processes(commands: Sequence[tuple[list[str], dict[str, str]]], said: Path) -> Iterator[list[Process]]:
    """Start these; at the end they have gone by themselves, or are ended. What they say is shown if they fail."""
    # All in our own session: where the kernel shares a busy machine between sessions (autogroups), ranks with one each
    # would get more of it than Cordée's workers, which have one together.
    with said.open("wb") as output:
        running = [
            subprocess.Popen(command, env={**os.environ, **environment}, stdout=output, stderr=output)
            for command, environment in commands
        ]
    try:
        yield running
        codes = [process.wait(ENDING_S) for process in running]
        if any(codes):
            raise RuntimeError(f"{' '.join(commands[0][0])} ended with the codes {codes}")
    except BaseException:
        print(said.read_text(errors="replace"), file=sys.stderr)
        raise
    finally:
        for process in running:
            _end(process)


def _end(process: Process) -> None:
    """What has not gone by itself goes now."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
