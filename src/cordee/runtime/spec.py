"""What a worker is told when it is started, as a value that travels over a private socket."""

from __future__ import annotations

from dataclasses import dataclass, field

from cordee.core.plan import Plan
from cordee.group.wire import Address


@dataclass(frozen=True)
class Trial:
    """Only some steps of a job, to see how fast it is: nothing is evaluated, saved or exported."""

    steps: int
    batch_times: int = 1
    """How many times the job's batch a step holds."""


@dataclass(frozen=True)
class Target:
    """What to run: a job file, a script with its arguments, or a job that a notebook sent."""

    kind: str
    """`job`, `script` or `sent`."""
    path: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    trial: Trial | None = None
    """Of a job: instead of training it to its end."""


@dataclass(frozen=True)
class WorkerSpec:
    """One worker: who it is, where its hub is, what it runs, and what it may use."""

    worker: int
    target: Target
    plan: Plan
    out: str
    resume: bool
    hub: Address
    interface: str
    threads: int
    cores: tuple[int, ...]
    folder: str
    environment: dict[str, str]
    """With its place among the workers, as `World.from_env` reads it."""
    deadline_s: float
    device: str
    memory: str = ""
    """The folder in the memory of its host for copies of the state; empty: there is none."""
    keeper: Address | None = None
    """The launcher that takes these copies on another host; None: none does."""
    joins: bool = False
    """It comes in while others train, and gets their state."""
