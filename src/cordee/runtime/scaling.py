"""Measure how a job scales: run some steps of it with each number of workers, in rounds, and take the step times."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from cordee.core.errors import CordeeError, Interrupted, JobError, UsageError, WorkersLost
from cordee.core.eventlog import read_events
from cordee.core.events import Event, FailureEvent, Listener, StepEvent
from cordee.core.machine import gpus, usable_cores
from cordee.core.plan import Plan
from cordee.core.scaling import Timed, is_oversubscribed
from cordee.core.world import World
from cordee.runtime.engines.choice import Chosen
from cordee.runtime.launch import Launch
from cordee.runtime.relay import Output
from cordee.runtime.resources import devices
from cordee.runtime.spec import Target, Trial
from cordee.runtime.start import run


@dataclass(frozen=True)
class Measurement:
    """What to measure, and how often."""

    target: Target
    counts: tuple[int, ...]
    """Numbers of workers, in the order in which the first round runs them."""
    plan: Plan
    out: Path
    rounds: int = 3
    steps: int = 30
    """Measured steps of a run."""
    warm_up: int = 5
    """Steps before them. One at least: a step is timed from the end of the one before."""
    weak: bool = False
    """The batch grows with the workers; otherwise it stays."""
    threads: int | None = None
    device: str = "auto"
    keep: bool = False
    """Leave the runs' folders."""
    engine: Chosen | None = None
    """What gives the workers places; None: they are on this machine."""
    trusted_network: bool = False

    @property
    def threads_each(self) -> int:
        """Threads of a worker, the same in all runs: otherwise the smallest count would have the whole machine too."""
        if self.threads is not None:
            return self.threads
        cores = 1 if self.engine is not None else len(usable_cores())  # what cores its places have is not known here
        return max(1, cores // max(self.counts))

    @property
    def gpus(self) -> int | None:
        """How many GPUs the workers share; None on the CPU, and in places of an engine."""
        if self.engine is not None:
            return None
        return gpus() if devices(1, self.device)[0].startswith("cuda") else None

    @property
    def oversubscribed(self) -> list[int]:
        """The counts whose workers have to share cores or GPUs."""
        if self.engine is not None:
            return []
        threads, cores, gpus = self.threads_each, len(usable_cores()), self.gpus
        return [one for one in sorted(self.counts) if is_oversubscribed(one, threads=threads, cores=cores, gpus=gpus)]

    def check(self) -> None:
        """Refuse what cannot be measured, before anything runs."""
        for name, value, least in (("rounds", self.rounds, 1), ("steps", self.steps, 2), ("warm-up", self.warm_up, 1)):
            if value < least:
                raise UsageError(f"--{name} {value}: at least {least} is needed")
        world = World.from_env()
        if world.is_foreign and self.engine is None:
            raise UsageError(
                f"{world.source} started this process: give `cordee bench` by itself, it starts its own workers"
            )
        if (self.out / "scaling.json").exists():
            raise UsageError(f"{self.out} holds a measurement already: choose another folder with --out")
        for count in self.counts:
            with _told(f"with --workers {count}"):
                launch = self.launch(1, count)
                launch.check() if self.engine is None else launch.plan.check(count)

    def launch(self, round: int, workers: int) -> Launch:
        """One run."""
        trial = Trial(self.warm_up + self.steps, workers if self.weak else 1)
        out = self.out / "runs" / f"round-{round}-workers-{workers}"
        target = replace(self.target, trial=trial)
        # The figures are alone on standard output.
        output = Output(lambda text: print(text, file=sys.stderr), frozenset({1}))  # noqa: T201
        launch = Launch(target, workers, self.plan, out, threads=self.threads_each, device=self.device, output=output)
        return replace(launch, engine=self.engine, trusted_network=self.trusted_network)

    def run(self, name: str, round: int, workers: int, listen: Listener) -> Timed:
        """Run it; the folder of a run that fails is kept, and the error says so, and gives the run's `name`."""
        out, removes = self.launch(round, workers).out, not self.keep
        try:
            with _told(f"{name} failed", f"its folder is kept: {out}"):
                start = run if self.engine is None else self.engine.run
                start(self.launch(round, workers), listen, None)
            with _told(f"{name} cannot be used", f"its folder is kept: {out}"):
                times = step_times(read_events(out / "events.jsonl"), warm_up=self.warm_up, steps=self.steps)
            return Timed(workers, round, *times)
        except (Interrupted, KeyboardInterrupt):
            raise Interrupted(f"{name} was stopped; the measurement is not complete, and nothing was written") from None
        except CordeeError:
            removes = False
            raise
        finally:
            if removes:
                shutil.rmtree(out, ignore_errors=True)
            for folder in (out.parent, self.out):
                with contextlib.suppress(OSError):  # which is how it says that something is left in it
                    folder.rmdir()


def step_times(events: Iterable[Event], *, warm_up: int, steps: int) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Seconds and samples of the steps after the first `warm_up`, from a run's events.

    A step counts from the moment when the one before was committed, so that nothing between two steps is left out.
    """
    taken = []
    for event in events:
        if isinstance(event, FailureEvent):
            raise WorkersLost(f"worker {event.worker} was lost ({event.reason}), so fewer were measured than meant")
        if isinstance(event, StepEvent):
            taken.append(event)
    if len(taken) < warm_up + steps:
        raise JobError(
            f"the job ended after {len(taken)} steps, where {warm_up} to warm up and {steps} to measure were expected: "
            "something in it asks to stop; choose fewer with --steps"
        )
    pairs = list(pairwise(taken[: warm_up + steps]))[warm_up - 1 :]
    # A clock that was set back within a step leaves only the worker's own measure of it.
    seconds = tuple(gap if (gap := after.moment - before.moment) > 0 else after.ms / 1e3 for before, after in pairs)
    return seconds, tuple(after.samples for _, after in pairs)


@contextlib.contextmanager
def _told(what: str, next_step: str = "") -> Iterator[None]:
    """Errors in here say first what they are about."""
    try:
        yield
    except CordeeError as error:
        error.message, error.next_step = f"{what}: {error.message}", next_step or error.next_step
        raise
