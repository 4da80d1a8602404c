"""`cordee.train`, and what it shares with the command: a run with progress, a report, and a folder of its own."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cordee.core import interrupts
from cordee.core.cgroup import cpu_quota
from cordee.core.errors import UsageError
from cordee.core.machine import gpus, usable_cores
from cordee.core.plan import Plan
from cordee.core.world import World
from cordee.runtime.engines.choice import Chosen
from cordee.runtime.folder import tidied
from cordee.runtime.launch import DEADLINE_S, Launch
from cordee.runtime.relay import Output
from cordee.runtime.rendezvous import Rendezvous
from cordee.runtime.resources import parse_cores
from cordee.runtime.result import Result
from cordee.runtime.spec import Target
from cordee.runtime.start import run
from cordee.runtime.wording import PYTHON, Wording
from cordee.watch.progress import ProgressView
from cordee.watch.report import Reported

if TYPE_CHECKING:
    from cordee.train.job import Job


@dataclass(frozen=True)
class Options:
    """What the user gave: options of the command, or arguments of `cordee.train`."""

    workers: int | None = None
    plan: Plan | str = "auto"
    out: str | Path | None = None
    resume: bool = False
    threads: int | None = None
    cores: str | None = None
    deadline: float = DEADLINE_S
    device: str = "auto"
    rendezvous: str | None = None
    nodes: int | None = None
    token_file: str | Path | None = None
    trusted_network: bool = False
    replace: bool = False
    """The same as `replace=true` in the plan."""
    engine: str | None = None
    engine_settings: Mapping[str, object] | None = None

    def launch(self, target: Target, wording: Wording) -> Launch:
        """What to start on this host; refused where options do not fit together."""
        if self.resume and self.out is None:
            raise UsageError(
                f"{wording.flag('resume')} needs {wording.option('out')}, the folder of the run to go on with"
            )
        engine = Chosen.parse(self.engine, self.engine_settings, wording)
        if engine is not None:
            self._refuse_beside(engine, wording)
        meeting = Rendezvous.parse(self.rendezvous, self.nodes, self.token_file, self.trusted_network, wording)
        plan = Plan.parse(self.plan)
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("out", "resume")}
        return Launch(
            target,
            default_workers(self.device) if self.workers is None else self.workers,
            replace(plan, replace=True) if self.replace else plan,
            Path(self.out) if self.out is not None else default_folder(Path(target.path).stem),
            self.resume,
            self.threads,
            parse_cores(self.cores) if self.cores else None,
            self.deadline,
            self.device,
            rendezvous=meeting,
            wording=wording,
            engine=engine,
            trusted_network=self.trusted_network,
            given={
                name: value if isinstance(value, int | float | Mapping) else str(value)
                for name, value in values.items()
                if value != getattr(Options, name)
            },
        ).taking_over()

    def _refuse_beside(self, engine: Chosen, wording: Wording) -> None:
        """Refuse what says where workers run, since the engine does."""
        for name in ("rendezvous", "nodes", "token_file", "cores"):
            if getattr(self, name) is not None:
                what = f"{engine.name} says where the workers run, so {wording.option(name)} does not go with it"
                raise UsageError(f"{wording.option('engine', engine.name)}: {what}")
        if self.workers is None or self.workers < 1:
            raise UsageError(
                f"{wording.option('engine', engine.name)} needs {wording.option('workers')}, at least 1: how many "
                "workers it is asked for"
            )

    def entering(self, target: Target, wording: Wording) -> Launch:
        """What this host gives to a run that has begun; the rest its coordinator says."""
        out = self.out or default_folder("entered")
        return replace(replace(self, out=out).launch(target, wording), enters=True)


def launch(given: Launch, *, ours: bool, job: Job | None = None, progress: bool = True) -> tuple[Result, Reported]:
    """Run it to its end; the result, and what was heard and reported meanwhile.

    `ours`: the name of the run's folder is not the user's, so nothing is left of a start that fails.
    """
    shown = ProgressView()
    if progress:
        given = replace(given, output=Output(shown.display.note, shown.display.streams))
    # Under another launcher a signal is for that launcher, which stops all of its processes.
    foreign = given.engine is None and World.from_env().is_foreign
    counting = contextlib.nullcontext() if foreign else interrupts.counted()
    tell = shown if progress else lambda event: None
    with counting, tidied(given.out, ours=ours), Reported(given.out, tell, tell=progress) as listen:
        try:
            start = run if given.engine is None else given.engine.run
            return Result(given.out, start(given, listen, job)), listen
        finally:
            shown.close()


def train(
    job: Job | str | Path,
    *,
    workers: int | None = None,
    plan: Plan | str = "auto",
    out: str | Path | None = None,
    resume: bool = False,
    settings: Mapping[str, object] | None = None,
    threads: int | None = None,
    cores: str | None = None,
    deadline: float = DEADLINE_S,
    device: str = "auto",
    rendezvous: str | None = None,
    nodes: int | None = None,
    token_file: str | Path | None = None,
    trusted_network: bool = False,
    engine: str | None = None,
    engine_settings: Mapping[str, object] | None = None,
    progress: bool = True,
) -> Result:
    """Train a job (or a job file) on this machine or several; raises a `CordeeError` if it fails.

    The arguments are the options of `cordee train`; `settings` are those of `--set`, for a job file. With `rendezvous`
    and `nodes`, call it on each of the hosts: the one that has the address returns the result, the others an empty one.
    With `engine` the workers run where that engine gives them places; `engine_settings` are those of `--engine-set`.

    A job made in this process is sent to the workers over a private pipe; nothing else is unpickled anywhere. Under
    torchrun, mpirun or Slurm this process is one of the workers, and every one calls this.
    """
    made = None if isinstance(job, str | Path) else job
    if made is not None and settings:
        raise UsageError("settings= is for job files, but this job is made already: give them to what makes it")
    given = {name: str(value) for name, value in (settings or {}).items()}
    target = Target("job", str(job), given) if made is None else Target("sent", made.name)
    meeting = (rendezvous, nodes, token_file, trusted_network)
    options = Options(
        *(workers, plan, out, resume, threads, cores, deadline, device),
        *meeting,
        engine=engine,
        engine_settings=engine_settings,
    )
    return launch(options.launch(target, PYTHON), ours=out is None, job=made, progress=progress)[0]


def default_workers(device: str = "auto") -> int:
    """One worker per GPU where there are any, else one per core, as far as a quota (of a container, say) goes."""
    cores, quota = len(usable_cores()), cpu_quota()
    return (0 if device == "cpu" else gpus()) or (cores if quota is None else min(cores, max(1, int(quota))))


def default_folder(name: str) -> Path:
    """A new folder under `runs/`, named after the job and the time."""
    first = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    others = (first.with_name(f"{first.name}-{number}") for number in itertools.count(2))  # of the same second
    return next(folder for folder in itertools.chain([first], others) if not folder.exists())
