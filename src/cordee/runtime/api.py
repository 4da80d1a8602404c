"""`cordee.train`: the launcher as a function, for scripts and notebooks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cordee.core.plan import Plan
from cordee.runtime.launch import Launch, run
from cordee.runtime.resources import usable_cores
from cordee.runtime.spec import Target
from cordee.watch.progress import Progress

if TYPE_CHECKING:
    from torch import nn

    from cordee.train.job import Job


@dataclass(frozen=True)
class Result:
    """How a run ended: what `result.json` says, and where the run's files are."""

    out: Path
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        """A value of `result.json`."""
        return self.values[name]

    @property
    def loss(self) -> float:
        """The last training loss."""
        return float(self.values["loss"])

    @property
    def validation(self) -> Mapping[str, float]:
        """Each validation metric by name."""
        found: Mapping[str, float] = self.values["validation"]
        return found

    @property
    def test(self) -> Mapping[str, float]:
        """Each test metric by name."""
        found: Mapping[str, float] = self.values["test"]
        return found

    def model(self) -> nn.Module:
        """The trained model."""
        from cordee.state.load import load

        return load(self.out)


def train(
    job: Job | str | Path,
    *,
    workers: int | None = None,
    plan: Plan | str = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    threads: int | None = None,
    progress: bool = True,
) -> Result:
    """Train a job (or a job file) on this machine; raises a `CordeeError` if it fails.

    A job made in this process is sent to the workers over a private pipe; nothing else is unpickled anywhere.
    """
    sent = None
    if isinstance(job, str | Path):
        target = Target("job", str(job))
    else:
        import cloudpickle

        target, sent = Target("sent", job.name), cloudpickle.dumps(job)
    folder = Path(out) if out is not None else default_folder(Path(target.path or "job").stem)
    launch = Launch(target, workers or default_workers(), Plan.parse(plan), folder, resume=resume, threads=threads)
    shown = Progress()
    try:
        return Result(folder, run(launch, shown if progress else lambda event: None, sent))
    finally:
        shown.close()


def default_workers() -> int:
    """One worker a core of this machine."""
    return len(usable_cores())


def default_folder(name: str) -> Path:
    """A new folder under `runs/`, named after the job and the time."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
