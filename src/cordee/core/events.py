"""What happens in a run: one type per event. Recorder, reader, viewers and reference page use these declarations."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Union

import msgspec
from msgspec import structs

from cordee.core.event import Count, Event, Moment, Number
from cordee.core.feedevents import FeedEvent
from cordee.core.memberevents import ChangeEvent, JoinedEvent, LeftEvent
from cordee.core.splitevents import CutEvent, HeldEvent, MemoryEvent, PipelineEvent, PipelineStepEvent, ShardEvent
from cordee.core.syncevents import (
    ContinuedEvent,
    CoordinatorEvent,
    DecisionEvent,
    PositionEvent,
    PushesEvent,
    ServerEvent,
    SharesEvent,
    StragglerEvent,
    TrafficEvent,
    WindowEvent,
)

__all__ = [
    "ChangeEvent",
    "ContinuedEvent",
    "CoordinatorEvent",
    "CutEvent",
    "DecisionEvent",
    "Event",
    "FeedEvent",
    "HeldEvent",
    "JoinedEvent",
    "LeftEvent",
    "MemoryEvent",
    "PipelineEvent",
    "PipelineStepEvent",
    "PositionEvent",
    "PushesEvent",
    "ServerEvent",
    "ShardEvent",
    "SharesEvent",
    "StragglerEvent",
    "TrafficEvent",
    "WindowEvent",
]


class StartEvent(Event):
    """A start of the run."""

    workers: Count
    """workers at the start"""
    plan: str
    """the plan as key=value,..."""
    resume: bool
    """whether a former run of this folder goes on"""


class PlanEvent(Event):
    """The plan of a script's session."""

    plan: dict[str, Any]
    """the plan that a session asked for itself, by key; it takes the place of the start's"""
    faithfulness: str
    """how near that is to one process"""


class JobEvent(Event):
    """What is trained."""

    name: str
    """of the job"""
    batch: Count
    """samples of a global batch"""
    epochs: Count | None
    """epochs to train; null: until something else stops it"""
    steps_per_epoch: Count
    """steps of an epoch"""
    steps: Count
    """steps that were already committed (0 unless resumed)"""
    parameters: Count
    """numbers in the model that are trained"""
    samples: dict[str, Count]
    """samples of train, validation and test"""
    last_step: Count | None = None
    """the step after which it ends; null: until something else stops it"""
    settings: dict[str, Any] = {}
    """other settings of the job: seed, shuffle, metrics, ..."""
    order: dict[str, Any] = {}
    """what decides the samples of each step, for `cordee audit`: batch, seed, ...; empty in former versions"""


class WorkerEvent(Event):
    """A worker introduces itself."""

    worker: Count
    """its number"""
    host: str
    """where it runs"""
    pid: Count
    """its process"""
    device: str
    """what it computes on"""
    threads: Count
    """how many threads it computes with"""
    cores: Number | None = None
    """cores that the workers of its host may use together, by affinity and quota"""
    node: Count | None = None
    """the place of its host among the hosts, from 0"""


class StepEvent(Event):
    """A step was committed."""

    step: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    """steps committed so far, this one included"""
    epoch: Count
    """the epoch of the step, from 0"""
    loss: float | None
    """mean loss over the global batch; null when not finite"""
    samples: Count
    """samples of the global batch"""
    ms: Number
    """from the step before to this one on the worker that speaks for all, without evaluation and saving"""
    grad_norm: float | None = None
    """norm of the global gradient, before it was clipped; null if it is not known"""
    lr: float | None = None
    """learning rate of the first group of parameters; null if the optimizer has none"""
    at: Moment | None = None
    """when it was committed there, in the launcher's clock"""


class TimesEvent(Event):
    """Where the time of some consecutive steps went on one worker: lists with an entry per step."""

    worker: Count
    """whose times these are"""
    first: Count = msgspec.field(name="from")
    """the first step of the lists below"""
    data_ms: list[Number]
    """waiting for data"""
    compute_ms: list[Number]
    """forward, backward, update, and all else from one step to the next but callbacks"""
    blocked_ms: list[Number]
    """in collectives: waiting for slower workers and communication together"""
    waited_ms: list[Number]
    """the part of blocked_ms that is known to be waiting; `arrived` tells of the rest"""
    samples: list[Count]
    """samples of its share"""
    arrived: list[Moment]
    """when the worker came to the collective, in the launcher's clock; the last one's tells them apart"""
    callbacks_ms: list[Number] = []
    """in the job's callbacks; in records of former versions a part of compute_ms"""
    hidden_ms: list[Number] = []
    """the part of compute_ms in which communication was seen to be under way; empty: none"""
    sent: list[Count] = []
    """bytes to other workers and to parameter servers; empty: none"""
    plain: list[Count] = []
    """what these would have been without a codec"""
    paused_ms: list[Number] = []
    """in which the process did not run, since it was stopped or its machine was, in whatever part of the step; empty:
    none"""

    def __post_init__(self) -> None:
        """Refuse lists of different lengths; those that came later may be missing."""
        for name in ("callbacks_ms", "hidden_ms", "sent", "plain", "paused_ms"):
            setattr(self, name, getattr(self, name) or [0] * len(self.arrived))
        lists = [one for one in structs.astuple(self) if isinstance(one, list)]
        if any(len(one) != len(self.arrived) for one in lists):
            raise ValueError("Expected lists of one length")


class UsageEvent(Event):
    """What a worker uses."""

    worker: Count
    """whose resources these are"""
    cpu_s: Number
    """processor time since its start"""
    memory_mb: Number
    """memory it holds now, in MiB, what it shares with its siblings included"""
    gpu_mb: Number
    """memory it holds on its GPU, in MiB; 0 without one"""
    bytes_sent: Count
    """bytes it has sent to other workers and to parameter servers since its start"""
    at: Moment
    """when it was read, in the launcher's clock"""
    bytes_near: Count = 0
    """the part of bytes_sent that did not leave its host"""
    bytes_plain: Count = 0
    """what bytes_sent would be without a codec; 0 in records of former versions"""
    bytes_received: Count = 0
    """bytes that parameter servers have sent to it"""


class EpochEvent(Event):
    """An epoch ended."""

    epoch: Count
    """the epoch that ended, from 0"""
    step: Count
    """steps committed so far"""
    loss: float | None
    """training loss of its last step"""
    validation: Mapping[str, float | None]
    """value of each metric by name"""
    ms: Number
    """how long the evaluation took"""


class CheckpointEvent(Event):
    """A checkpoint was written."""

    step: Count
    """the step it holds; the record is written when all of it is on disk"""
    ms: Number
    """how long the training stood still for it"""
    at: Moment | None = None
    """since when, in the launcher's clock"""


class FailureEvent(Event):
    """A worker was lost."""

    worker: Count
    """which worker was lost"""
    host: str
    """where"""
    reason: str
    """what was seen"""
    left: Count
    """workers that are left"""
    at: Moment | None = None
    """when it was seen, in the launcher's clock; the record is written a little later"""


class RegroupEvent(Event):
    """A new group of workers goes on."""

    generation: Count
    """number of the new group"""
    workers: list[Count]
    """the workers in it"""
    ms: Number
    """from the news of the failure until all agreed to go on"""
    at: Moment | None = None
    """when they did, in the launcher's clock"""


class LinksEvent(Event):
    """Links between hosts were measured."""

    links: list[tuple[str, str, Number, Number]]
    """from host, to host, Mbit/s and round trip in ms of each link that was measured at the start"""


class FaultEvent(Event):
    """A fault was injected."""

    what: str
    """what was done to the cluster on purpose, by `cordee twin`"""


class WarningEvent(Event):
    """Something to know."""

    message: str
    """what to know"""


class StrangerEvent(Event):
    """Connections were refused."""

    listener: str
    """what they reached: the coordinator, a parameter server, or a launcher that takes copies of the state"""
    host: str
    """where that listens"""
    address: str
    """from where they came"""
    reason: str
    """what they did"""
    count: Count
    """how many of them there were until then: written at the first, the 10th, the 100th, and so on, and at the end"""


class AttemptEvent(Event):
    """A start that was to resume the run ended before it did."""

    code: Count
    """exit code of a start that was to go on with the run, and ended before it did"""
    message: str
    """what the user was told"""


class ResultEvent(Event):
    """What the run came to."""

    result: dict[str, Any]
    """what result.json says"""


class EndEvent(Event):
    """The end of a start."""

    reason: str
    """why the run ended, in a word"""
    code: Count
    """exit code"""
    message: str = ""
    """what the user was told"""


EVENTS: Mapping[str, type[Event]] = {str(one.__struct_config__.tag): one for one in Event.__subclasses__()}
"""Every type of event, by its name in a record."""
Listener = Callable[[Event], None]
"""What is given the events of a run as they happen."""
ANY_EVENT: Any = Union[tuple(EVENTS.values())]  # noqa: UP007 - of a tuple


def plain_value(value: Any) -> Any:
    """What JSON holds in place of `value`: numbers for scalars of arrays and tensors, text for paths."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item"):
        return value.item()
    for kind in (str, int, float):  # subclasses of them
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"JSON cannot hold {value!r}")


encode = msgspec.json.Encoder(enc_hook=plain_value).encode
"""A value as JSON; NaN and infinity become null."""
