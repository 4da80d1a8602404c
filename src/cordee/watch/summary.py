"""What a run came to, as one value: made by `summarise`, shown by the report and by `cordee report`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cordee.core.times import COSTS, PARTS

Column = tuple[float | None, ...]


@dataclass(frozen=True)
class Curve:
    """Values over the course of a run; a row stands for some consecutive steps."""

    step: tuple[int, ...] = ()
    """The last step of each row."""
    seconds: tuple[float, ...] = ()
    """When that was, in seconds of running: the time between an end and a resume does not count."""
    redone: tuple[bool, ...] = ()
    """Whether the steps of the row were done again after a resume."""
    values: Mapping[str, Column] = field(default_factory=dict)
    """The values of each row, by name."""


@dataclass(frozen=True)
class StepParts:
    """Where the time of the steps went, and who had how many samples, over the course of the run."""

    step: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()
    redone: tuple[bool, ...] = ()
    count: tuple[int, ...] = ()
    """How many steps each row stands for."""
    workers: Mapping[str, Mapping[str, Column]] = field(default_factory=dict)
    """By worker, per step: milliseconds by part, `samples`, `hidden` milliseconds, and bytes `sent` and `plain`.

    None where the worker was not there.
    """


@dataclass
class Worker:
    """One worker of one start: after a resume the worker with the same number is another process."""

    worker: int
    host: str = ""
    pid: int | None = None
    device: str = ""
    threads: int | None = None
    spans: tuple[tuple[float, float], ...] = ()
    """From when to when it was there, in seconds of running."""
    lost: str = ""
    """What was seen when it was lost; empty if it was not."""
    steps: int = 0
    """Steps that it took part in, and reported."""
    samples: int = 0
    time_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    """Seconds of its steps by part."""
    cpu_s: float = 0.0
    cpu_cores: float | None = None
    """How many cores it kept busy from its first reading to its last; None if these lie too close together."""
    memory_mb: float = 0.0
    """The most memory that it was seen with."""
    gpu_mb: float = 0.0
    held: dict[str, int] = field(default_factory=dict)
    """Bytes of the state that it holds, where several hold it together: `parameters`, `gradients`, `optimizer`."""
    forecast_mb: float = 0.0
    """What it was forecast to need on its device; 0 if that is not on record."""
    bytes_sent: int = 0
    bytes_near: int = 0
    """The part of `bytes_sent` that did not leave its host."""
    bytes_plain: int = 0
    """What `bytes_sent` would be without a codec; 0 if that is not on record."""
    bytes_received: int = 0
    """From parameter servers."""
    costs: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COSTS, 0.0))
    """Of its steps: `hidden` seconds of communication, bytes `sent`, and what these would have been: `plain`."""
    paused_s: float = 0.0
    """Of its steps: in which its process did not run."""
    hours: float = 0.0
    start: int = 1
    """Which start of the run, from 1."""
    cores: float | None = None
    """Cores that the workers of its host share; None if that is not on record."""
    at_least: bool = False
    """Whether steps and samples may be more: a worker that is killed takes its last reports with it."""

    @property
    def measured_s(self) -> float:
        """The time of its steps, all in all."""
        return sum(self.time_s.values())

    @property
    def step_ms(self) -> float:
        """The mean length of its steps, in milliseconds."""
        return 1e3 * self.measured_s / self.steps if self.steps else 0.0

    def per_step(self, cost: str) -> float:
        """Of a step, as a mean: see `costs`."""
        return self.costs[cost] / self.steps if self.steps else 0.0

    def share(self, part: str) -> float:
        """The part of its steps' time that went into `part`, from 0 to 1."""
        return self.time_s.get(part, 0.0) / self.measured_s if self.measured_s else 0.0


@dataclass
class Incident:
    """Something that happened: a worker lost, a new group, a resume, a warning, an end."""

    kind: str
    time: float
    """Seconds since 1970."""
    seconds: float
    """Seconds of running."""
    step: int
    """Steps committed by then."""
    text: str
    worker: int | None = None
    host: str = ""
    ms: float | None = None
    """How long it took; of a worker's loss the length of the step in which it happened."""
    usual_ms: float | None = None
    """Of a worker's loss: the median of the steps around it in the same start."""


@dataclass(frozen=True)
class Latency:
    """How long steps took, in milliseconds."""

    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    longest: float = 0.0
    edges: tuple[float, ...] = ()
    """Bounds of the classes of the histogram, one more than there are classes."""
    counts: tuple[int, ...] = ()
    beyond: int = 0
    """Steps longer than the last bound."""


@dataclass(frozen=True)
class Decision:
    """What sync=auto decided, what it forecast for its choice, and what was measured then."""

    step: int
    """From which step on."""
    seconds: float
    """When, in seconds of running."""
    before: str
    choice: str
    reason: str
    compute_ms: float
    link_mbit: float
    """As it was measured for this decision."""
    forecast_ms: float | None
    """Of a step, by the choice."""
    measured_ms: float | None = None
    """Of the steps that followed, as the next decision measured it; None before there is one."""


@dataclass(frozen=True)
class Traffic:
    """Where the bytes went, beside what each worker has."""

    servers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By parameter server: `host`, `bytes_sent`, and `bytes_near`, the part of it that did not leave its host."""
    feed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By worker, where its samples came from, over all starts; see the event `feed`. Empty if there is no choice."""
    fed: Mapping[str, Any] = field(default_factory=dict)
    """The same of all workers together."""
    links: tuple[tuple[str, str, float, float], ...] = ()
    """Measured at the start: from host, to host, Mbit/s, and round trip in milliseconds."""
    staleness: tuple[int, ...] = ()
    """How many pushes had which staleness, from 0 on; the last entry also has those beyond."""
    decisions: tuple[Decision, ...] = ()
    left_out: int = 0
    """Decisions beyond those listed; those that changed nothing are left out first."""


Lane = tuple[tuple[str, float, float], ...]
"""What one rank of a pipeline executes in a step: each action with its begin and end in milliseconds."""


@dataclass(frozen=True)
class PipelineStep:
    """How a step of a pipeline went in one replica."""

    replica: int
    step: int
    workers: tuple[int, ...]
    """By rank of the pipeline."""
    lanes: tuple[Lane, ...]
    """On one clock, which begins with the first action."""
    ms: float
    bubble: tuple[float, ...]
    """The part of the step in which each rank computes nothing."""


@dataclass(frozen=True)
class Pipeline:
    """The schedule of a pipeline: how a step was forecast, and how it went."""

    schedule: str
    table: str
    """A line per rank: its actions in order."""
    micros: int
    stages: int
    forecast: tuple[Lane, ...]
    forecast_ms: float
    bubble: tuple[float, ...]
    """Of each rank, as forecast."""
    held: tuple[int, ...]
    """The most activations that each rank holds, in micro-batches."""
    measured: tuple[PipelineStep, ...] = ()
    """The last step that is on record from all ranks, by replica."""


@dataclass(frozen=True)
class Summary:
    """What a run came to, so far."""

    name: str
    folder: str
    state: str
    """`completed`, `interrupted`, `failed`, `running`, or `unknown` when no end is on record and nothing was heard.

    `killed` when no end is on record and no process holds the folder: `cordee report` sees that on the run's machine.
    """
    reason: str
    code: int | None
    started: float
    heard: float
    """When the last record was written; both in seconds since 1970."""
    running_s: float
    starts: int
    plan: str
    """The plan of the last start, as `key=value,...`; a session's own if it has one."""
    faithfulness: str
    ended: str
    """Why the training ended, in words, if that is on record."""
    run: Mapping[str, Any]
    """What `run.json` says: target, plan, faithfulness, workers, host, versions, job."""
    result: Mapping[str, Any]
    """What `result.json` says of the last start; empty if that has not ended well."""
    steps: int
    last_step: int | None
    """The step after which it was to end; None if that is not known."""
    epochs: int
    """Epochs completed; begun, in a script with its own loop."""
    samples: int
    loss: float | None
    validation: Mapping[str, float | None]
    test: Mapping[str, float | None]
    lr: float | None
    """The learning rate of the last step; None if it is not on record."""
    grad_norm: float | None
    """The norm of the last step's gradient before clipping; None if it is not on record."""
    throughput: float
    """Samples per second, over the time of the steps."""
    latency: Latency
    failures: int
    checkpoints: int
    other_s: Mapping[str, float]
    """Seconds that belong to no step: `start`, `evaluation`, `saving`."""
    resources: Mapping[str, float]
    """Over all workers: cpu_s, memory_mb, gpu_mb (of the one that had most), worker_hours, and bytes as in `Worker`."""
    workers: tuple[Worker, ...]
    incidents: tuple[Incident, ...]
    left_out: int
    """Incidents beyond those listed."""
    losses: Curve
    """`loss`, `loss_low`, `loss_high` of training; `lr`, `grad_norm`, `grad_norm_low` and `_high` where on record."""
    pace: Curve
    """`throughput` in samples per second, `ms`, `ms_low` and `ms_high` of a step."""
    metrics: Curve
    """Validation after each epoch."""
    saves: Curve
    """Checkpoints: `ms`, how long the training stood still."""
    split: StepParts
    traffic: Traffic
    pipeline: Pipeline | None
    """Of the last start; None without a pipeline."""
    usage: Mapping[str, Curve]
    """By worker, over seconds only: `cores`, `memory_mb`, `gpu_mb`, `sent_mb_s`."""
