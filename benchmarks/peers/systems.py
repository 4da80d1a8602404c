"""The systems that are compared: what each one is, and how it is started."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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
    goals: Mapping[str, float] = field(default_factory=dict)
    """What the ratio has to reach, by task; a peer that has some takes part in these tasks only."""
    starts_its_ranks: bool = False
    """Whether the script starts its ranks by itself, instead of being started once for each by `ranks.py`."""

    @property
    def missing(self) -> str | None:
        """Why it cannot take part, or None."""
        if importlib.util.find_spec(self.module) is None:
            return f"{self.module} is not installed: {INSTALL}"
        return None


PEERS = {
    "alone": Peer(
        "two independent processes, each with a model of its own and half of the batch, which exchange nothing: no peer"
        " but the bound, in tiny steps",
        "alone.py",
        starts=4,
        goals={"mlp": 0.8},
    ),
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
        starts_its_ranks=True,
    ),
}
"""By name. All get the model, data, loss and optimizer that Cordée gets; all but the first use gloo, with
gradient_as_bucket_view."""


@contextlib.contextmanager
def cordee(task: str, path: str, folder: Path, plan: str = "auto", side: str = "cordee") -> Iterator[Process]:
    """A run of Cordée, by its own command; its workers introduce themselves as of a `side`."""
    command = [sys.executable, "-m", "cordee", "train", str(HERE / "job.py"), "--workers", str(WORKERS)]
    command += ["--plan", plan, "--threads", "1", "--out", str(folder / "run")]
    command += ["--set", f"task={task}", "--set", f"turns={path}", "--set", f"side={side}"]
    with process(command, {}, folder / "said") as running:
        yield running


@contextlib.contextmanager
def started(peer: Peer, task: str, path: str, name: str, folder: Path) -> Iterator[Process]:
    """The peer, by the process that all its others come from; its ranks introduce themselves as `name`."""
    arguments = [str(HERE / peer.script), task, path, name]
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with contextlib.ExitStack() as stack:
        if peer.starts_its_ranks:
            # A folder with a short path, because Ray keeps sockets in it; its logs go with it.
            own = stack.enter_context(tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True))
            command = [sys.executable, *arguments, own]
            environment["RAY_USAGE_STATS_ENABLED"] = "0"
        else:
            command = [sys.executable, str(HERE / "ranks.py"), *arguments]
        yield stack.enter_context(process(command, environment, folder / f"said-{name}"))


@contextlib.contextmanager
def process(command: list[str], environment: dict[str, str], said: Path) -> Iterator[Process]:
    """Start this; at the end it has gone by itself, or is ended. What it says is shown if it fails."""
    with said.open("wb") as output:
        # In a session of its own, as the workers of Cordée are: see ranks.py.
        running = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield running
        if code := running.wait(ENDING_S):
            raise RuntimeError(f"{' '.join(command)} ended with {code}")
    except BaseException:
        print(said.read_text(errors="replace"), file=sys.stderr)
        raise
    finally:
        _end(running)


def _end(process: Process) -> None:
    """What has not gone by itself goes now, with all that it has started in its session."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(ENDING_S)
