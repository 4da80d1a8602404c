"""`cordee.train`: the launcher as a function, for scripts and notebooks."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cordee.core import interrupts
from cordee.core.cgroup import cpu_quota
from cordee.core.errors import JobError
from cordee.core.machine import gpus, usable_cores
from cordee.core.plan import Plan
from cordee.core.world import World
from cordee.runtime.folder import tidied
from cordee.runtime.launch import Launch
from cordee.runtime.relay import Output
from cordee.runtime.result import Result
from cordee.runtime.spec import Target
from cordee.runtime.start import run
from cordee.runtime.wording import PYTHON
from cordee.watch.progress import ProgressView
from cordee.watch.report import reported

if TYPE_CHECKING:
    from cordee.train.job import Job


def train(
    job: Job | str | Path,
    *,
    workers: int | None = None,
    plan: Plan | str = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    threads: int | None = None,
    device: str = "auto",
    progress: bool = True,
) -> Result:
    """Train a job (or a job file) on this machine; raises a `CordeeError` if it fails.

    A job made in this process is sent to the workers over a private pipe; nothing else is unpickled anywhere. Under
    torchrun, mpirun or Slurm this process is one of the workers, and every one calls this.
    """
    is_file = isinstance(job, str | Path)
    target = Target("job", str(job)) if is_file else Target("sent", job.name)  # type: ignore[union-attr]
    folder = Path(out) if out is not None else default_folder(Path(target.path).stem)
    count = default_workers(device) if workers is None else workers
    shown = ProgressView()
    output = Output(shown.display.output, shown.display.streams) if progress else Output()
    launch = Launch(
        target,
        count,
        Plan.parse(plan),
        folder,
        resume=resume,
        threads=threads,
        device=device,
        wording=PYTHON,
        output=output,
    ).taking_over()
    world = World.from_env()
    tell = shown if progress else lambda event: None
    foreign = world.source not in ("alone", "cordee")
    heeding = contextlib.nullcontext() if foreign else interrupts.counted()
    with heeding, tidied(folder, ours=out is None), reported(folder, tell, tell=progress) as listen:
        try:
            if foreign:
                from cordee.runtime.foreign import run_foreign

                return Result(folder, run_foreign(launch, world, listen, None if is_file else job))  # type: ignore[arg-type]
            return Result(folder, run(launch, listen, None if is_file else _packed(job)))  # type: ignore[arg-type]
        finally:
            shown.close()


def _packed(job: Job) -> bytes:
    """A job as bytes for the workers: its lambdas and classes by value, as a notebook has no module to import.

    Modules go by name, so before the job comes the path that this process imports from: its script's folder is there.
    """
    import cloudpickle

    try:
        packed: bytes = cloudpickle.dumps(sys.path) + cloudpickle.dumps(job)
    except Exception as error:  # whatever a user's object raises when it is asked for its state
        raise JobError(
            f"the job cannot be sent to the workers: {error}. A function of it uses an object that this process alone "
            "can have (a lock, a thread, a connection): make it inside the function, or write the job to a file "
            'and train that: cordee.train("job.py")'
        ) from error
    return packed


def default_workers(device: str = "auto") -> int:
    """One worker a GPU where there are any, else one a core, as far as a quota (of a container, say) goes."""
    cores, quota = len(usable_cores()), cpu_quota()
    return (0 if device == "cpu" else gpus()) or (cores if quota is None else min(cores, max(1, int(quota))))


def default_folder(name: str) -> Path:
    """A new folder under `runs/`, named after the job and the time."""
    first = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = first, 1
    while folder.exists():  # another one of the same second
        number += 1
        folder = first.with_name(f"{first.name}-{number}")
    return folder
