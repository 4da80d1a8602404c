"""One step of a pipeline on one worker: its row of the table, with what it receives and sends."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cordee.core.errors import ModelError
from cordee.group.mail import Expected, Mail
from cordee.split.schedules.table import Action, Table
from cordee.split.seam import Micro
from cordee.split.staged import Passed, Staged

AHEAD = 2
"""Messages that are asked for before the action that needs them is next: more would hold more memory."""
FIRST_TAG = 4096
"""Messages of actions have tags from here on."""

Shapes = tuple[tuple[tuple[torch.Size, torch.dtype], ...], tuple[bool, ...]]
"""Of the tensors that a stage receives, and which of them it sends a gradient of back."""


@dataclass
class Executed:
    """A step as this worker executed it."""

    table: Table
    began: float
    """The moment from which `spans` count, by `time.perf_counter`."""
    spans: list[tuple[float, float]] = field(default_factory=list)
    """Begin and end of each action, in milliseconds."""


class Execution:
    """Executes one row of a table."""

    def __init__(
        self,
        staged: Staged,
        mail: Mail,
        shapes: Callable[[int, Micro], Shapes],
        table: Table,
        micros: Sequence[Micro],
        *,
        learns: bool,
        around: Callable[[Action], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """`shapes` tells what a stage receives for a micro-batch; `learns`: with backwards; `around` each action.

        The table may have more micro-batches than there are here: nothing is computed for these.
        """
        self._staged, self._mail, self._shapes, self._table, self._micros = staged, mail, shapes, table, micros
        self._learns, self._around = learns, around
        self._passed: dict[tuple[int, int], Passed] = {}
        """By stage and micro-batch: what a backward needs."""
        self._results: dict[int, Any] = {}
        self._expected: deque[Expected] = deque()
        self.executed = Executed(table, time.perf_counter())

    def run(self, rank: int) -> list[Any] | None:
        """What each micro-batch gave, on the rank with the last stage, else nothing; None: a worker was lost."""
        row = [one for one in self._table.rows[rank] if self._learns or one.kind == "F"]
        ahead = deque(one for one in row if self._arrives(one))
        device = next((one.device for one in self._staged.model.parameters()), torch.device("cpu"))
        for action in row:
            received: Sequence[Tensor] = ()
            while ahead and len(self._expected) < AHEAD:
                self._expected.append(self._expect(ahead.popleft()))
            if self._arrives(action):
                taken = self._mail.take(self._expected.popleft())
                if taken is None:
                    return None
                received = [one.to(device) for one in taken]
            began = time.perf_counter()
            with self._around(action):
                made = self._do(action, received) if self._is_here(action) else ()
            spent = (1e3 * (moment - self.executed.began) for moment in (began, time.perf_counter()))
            self.executed.spans.append((next(spent), next(spent)))
            if (target := self._table.goes_to(action)) is not None and self._is_here(action):
                self._send(made, action, target)
        return [self._results[place] for place in sorted(self._results)]

    def _is_here(self, action: Action) -> bool:
        """Whether its micro-batch is one of this worker's share."""
        return action.micro < len(self._micros)

    def _arrives(self, action: Action) -> bool:
        return self._is_here(action) and self._table.arrives_from(action) is not None

    def _expect(self, action: Action) -> Expected:
        """Ask for what an action of this rank needs."""
        origin = self._table.arrives_from(action)
        assert origin is not None
        forwards = action.kind == "F"
        tensors, back = self._shapes(action.stage + (not forwards), self._micros[action.micro])
        kept = tensors if forwards else tuple(one for one, sent in zip(tensors, back, strict=True) if sent)
        return self._mail.expect(kept, self._table.rank_of(origin.stage), self._tag(action), f"waits for {origin}")

    def _do(self, action: Action, received: Sequence[Tensor]) -> Sequence[Tensor]:
        """Compute an action; what it has to send."""
        kind, stage, micro = action
        if kind == "F":
            return self._forward(stage, micro, received)
        if kind == "I":
            return self._staged.backward_inputs(self._passed[stage, micro], received)
        passed = self._passed.pop((stage, micro))
        if kind == "W":
            self._staged.backward_weights(passed)
            return ()
        return self._staged.backward(passed, received)

    def _forward(self, stage: int, place: int, received: Sequence[Tensor]) -> Sequence[Tensor]:
        micro = self._micros[place]
        losses: list[Tensor] = []

        def weighed() -> Tensor:
            loss: Tensor = micro.compute()
            losses.append(loss.detach())
            return (loss if loss.dtype in (torch.float32, torch.float64) else loss.float()) * micro.factor

        run = weighed if self._learns else micro.compute
        passed = self._staged.forward(stage, run, received, draw=micro.draw)
        if stage + 1 == self._table.stages:
            self._results[place] = losses[0] if self._learns else passed.result
            if micro.factor == 0.0:  # its loss may be NaN, a mean over nothing: it is left out, not multiplied
                passed.roots.clear()
        if self._learns:
            self._passed[stage, place] = passed
        return passed.outputs

    def _send(self, made: Sequence[Tensor], action: Action, target: Action) -> None:
        if action.kind == "F":
            shapes, _ = self._shapes(target.stage, self._micros[action.micro])
            found = tuple((one.shape, one.dtype) for one in made)
            if found != shapes:
                raise ModelError(
                    f"stage {action.stage} gives tensors of shapes {_written(found)}, but {_written(shapes)} for the "
                    "first batch of the same shapes. A pipeline needs shapes between its layers that follow from the "
                    "shapes of the batch: leave out code that cuts or selects by numbers, or use pipeline=1"
                )
        self._mail.send(made, self._table.rank_of(target.stage), self._tag(target), f"sends {action}")

    def _tag(self, target: Action) -> int:
        """Of the message that an action is given."""
        return FIRST_TAG + 2 * (target.micro * self._table.stages + target.stage) + (target.kind != "F")


def _written(shapes: Sequence[tuple[torch.Size, torch.dtype]]) -> str:
    return ", ".join(f"{tuple(size)} {str(dtype).removeprefix('torch.')}" for size, dtype in shapes)
