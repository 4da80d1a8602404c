"""Events of how one replica lies over workers: memory, what is sharded, how a pipeline goes; see `events.py`."""

from __future__ import annotations

from cordee.core.event import Count, Event, Moment, Number

Spans = list[tuple[Number, Number]]
"""Begin and end of each action of a rank, in milliseconds."""


class CutEvent(Event):
    """The layers of the model were cut over workers, and compared with the whole model."""

    slices: Count
    """workers that hold one replica together"""
    layers: list[tuple[str, str]]
    """name and cut (column, row, heads) of each layer that is cut; empty where the job gave styles of torch"""
    whole: list[tuple[str, str]]
    """name of each other layer with a weight matrix, and why it is not cut"""
    loss: Number
    """by how much the loss of two samples differs from that of the whole model"""
    gradient: Number | None = None
    """the largest difference of a gradient, beside its size; null: not compared, for lack of memory"""
    parameter: str = ""
    """whose gradient that is"""
    units: list[tuple[str, Count, Number]] = []
    """of a pipeline, each part of the model that stays together: its first layer, its stage, and its cost (ms)"""
    speeds: list[Number] = []
    """of the stages, how fast their slowest workers are beside the fastest, in steps of a quarter; empty: not known"""


class PipelineEvent(Event):
    """The schedule of a pipeline, and what a step of it is forecast to take."""

    schedule: str
    """its name in the plan"""
    table: str
    """a line per rank of the pipeline: its actions in order, each as kind, stage and micro-batch, such as `F0.3`"""
    stage_ms: list[tuple[Number, Number, Number, Number]]
    """of each stage for one micro-batch: forward, whole backward, gradient of inputs, gradient of weights"""
    forecast: list[Spans]
    """for each rank, in the order of its line: begin and end of each action, in milliseconds of the step"""
    forecast_ms: Number
    """from the first action to the end of the last"""
    bubble: list[Number]
    """the part of that in which each rank computes nothing, from 0 to 1"""
    held: list[Count]
    """the most micro-batches whose activations each rank holds at once, counted once for each of its stages"""
    step: Count = 0
    """after which step it begins to hold"""

    def __post_init__(self) -> None:
        """Refuse a forecast that is not one of this table."""
        lengths = [len(line.split()) for line in self.table.splitlines()]
        each = {len(self.bubble), len(self.held)}
        if [len(row) for row in self.forecast] != lengths or each != {len(lengths)} or 0 in (len(lengths), *lengths):
            raise ValueError("Expected a forecast of each action of the table, and a bubble and a peak of each rank")


class PipelineStepEvent(Event):
    """How one step of a pipeline went on one of its ranks."""

    worker: Count
    """the worker"""
    replica: Count
    """its replica, from 0"""
    rank: Count
    """its place in the pipeline, from 0: the line of the table that it executed"""
    step: Count
    """the step, counted as in `step`"""
    began: Moment
    """in the launcher's clock, the moment from which `spans` count"""
    spans: Spans
    """begin and end of each action in the order of its line, in milliseconds"""


class ShardEvent(Event):
    """The state of the model was sharded over workers, and compared with the whole model."""

    shard: str
    """what is sharded, as the plan has it"""
    shards: Count
    """workers that hold the same layers together, each of which computes a share of the batch"""
    units: list[str]
    """the blocks that are gathered one by one (of a pipeline, those of the first worker); the rest comes together"""
    whole: list[str]
    """parameters that every worker holds whole; of a pipeline, those of the first worker"""
    loss: Number
    """by how much the loss of two samples differs from that of the whole model"""
    gradient: Number | None = None
    """the largest difference of a gradient, beside its size; null: not compared, for lack of memory"""
    parameter: str = ""
    """whose gradient that is"""


class HeldEvent(Event):
    """What one worker holds of the state of the model, where several hold it together."""

    worker: Count
    """the worker"""
    parameters: Count
    """bytes of parameters"""
    gradients: Count
    """bytes of gradients"""
    optimizer: Count
    """bytes of the optimizer's state"""


class MemoryEvent(Event):
    """What a worker is forecast to need of memory, in bytes; `usage` has what it took."""

    worker: Count
    """the worker"""
    parameters: Count
    """of the model as this worker holds it, with buffers"""
    gradients: Count
    """of the parameters that are trained"""
    state: Count | None
    """of the optimizer, on the device; null: not known before its first step"""
    buckets: Count
    """copies of gradients that are being sent"""
    activations: Count | None
    """between forward and backward pass, at the most; null: not measured"""
    total: Count
    """of all these"""
    host: Count
    """what a GPU keeps in host memory beside that"""
    free: Count
    """what this worker may take on its device, with what its model holds already"""
    host_free: Count
    """the same in host memory"""
    samples: Count
    """that it computes at once"""
    gathered: Count = 0
    """parameters and gradients that lie over workers (`shard`): what is whole here for a moment, at the most"""
