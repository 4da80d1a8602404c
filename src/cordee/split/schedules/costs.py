"""What the actions and messages of a pipeline cost, as values; all times are in milliseconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cordee.split.schedules.table import Action, Table


@dataclass(frozen=True)
class StageCosts:
    """One virtual stage, for one micro-batch."""

    forward_ms: float
    inputs_ms: float
    """Gradient of inputs."""
    weights_ms: float
    """Gradient of weights."""
    backward_ms: float | None = None
    """The whole backward at once; None: the sum of both. In two it may cost more than at once."""
    held_bytes: int = 0
    """Activations that are held from the forward to the end of the backward."""

    def of(self, kind: str) -> float:
        """The time of an action by its kind."""
        if kind == "B":
            return self.inputs_ms + self.weights_ms if self.backward_ms is None else self.backward_ms
        return {"F": self.forward_ms, "I": self.inputs_ms, "W": self.weights_ms}[kind]


@dataclass(frozen=True)
class Boundary:
    """The link between one stage and the next: activations go one way, gradients of the same size the other."""

    bytes_: int = 0
    """Of one message: the activations of one micro-batch."""
    latency_ms: float = 0.0
    bytes_per_ms: float = math.inf

    @property
    def sending_ms(self) -> float:
        """How long a message occupies the link in its direction; the next one waits so long."""
        return self.bytes_ / self.bytes_per_ms


@dataclass(frozen=True)
class Costs:
    """What a simulation needs to know."""

    stages: tuple[StageCosts, ...]
    boundaries: tuple[Boundary, ...] = ()
    """Of stage s with stage s + 1, for each stage but the last; empty: messages take no time."""
    speeds: tuple[float, ...] = ()
    """Of each rank, as a factor: a rank of speed 0.5 takes twice as long. Empty: all have speed 1."""

    @classmethod
    def equal(cls, stages: int, forward_ms: float = 1.0, inputs_ms: float = 1.0, weights_ms: float = 1.0) -> Costs:
        """The same costs for all stages; messages take no time."""
        return cls((StageCosts(forward_ms, inputs_ms, weights_ms),) * stages)

    def check(self, table: Table) -> None:
        """`ValueError` if these are not the costs of such a table."""
        expected = {"stages": table.stages, "boundaries": table.stages - 1, "speeds": table.ranks}
        for name, count in expected.items():
            given: Sequence[object] = getattr(self, name)
            if len(given) != count and (given or name == "stages"):
                raise ValueError(f"costs for {len(given)} {name}, but the table has {count}")
        if any(not speed > 0 for speed in self.speeds):
            raise ValueError(f"speeds {self.speeds}: expected numbers above 0")

    def action_ms(self, action: Action, rank: int) -> float:
        """How long a rank computes an action."""
        return self.stages[action.stage].of(action.kind) / (self.speeds[rank] if self.speeds else 1.0)

    def boundary(self, action: Action) -> Boundary:
        """Where the result of an action leaves its stage: forwards to the next one, backwards to the one before."""
        if not self.boundaries:
            return Boundary()
        return self.boundaries[action.stage - (action.kind != "F")]
