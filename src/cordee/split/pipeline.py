"""Pipelines: the layers of a replica in stages, on workers that execute a table of actions together.

A worker executes its row of the table (`schedules/`), and waits only for what the next action needs. Activations and
gradients are sent without waiting for their receiver. Shapes do not travel: every stage knows them by `Staged.specs`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from cordee.group.mail import Mail
from cordee.group.sliced import like, local_of
from cordee.group.team import Team
from cordee.split.execute import FIRST_TAG, Executed, Execution, Shapes
from cordee.split.gathered import GatheredStages
from cordee.split.schedules import table_of
from cordee.split.schedules.table import Table
from cordee.split.seam import Micro, Share, Split
from cordee.split.shard import parameters_of
from cordee.split.staged import Staged
from cordee.split.stages import Stages

CHUNKS = {"interleaved": 2}
"""Stages per worker, where that is not one."""
MOST_DIMENSIONS = 12
TRIPS = 5
"""So often a message is timed; the middle one counts."""
TIMED_TAG = FIRST_TAG - 1
_DTYPES = (
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.complex128),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
"""By their place here they are told to other stages."""


@cache
def table(schedule: str, ranks: int, micros: int) -> Table:
    """That of a schedule; made once for each number of micro-batches."""
    return table_of(schedule, ranks, micros, CHUNKS.get(schedule, 1))


def stages_of(schedule: str, ranks: int) -> int:
    """How many stages so many ranks hold together."""
    return ranks * CHUNKS.get(schedule, 1)


@dataclass(frozen=True)
class Staging:
    """How a model is trained in stages."""

    stages: Stages
    schedule: str
    micros: int
    """Micro-batches per share, if it has so many samples."""


class Pipeline(Split):
    """Stages on workers, each of which may be in slices; see `Split`."""

    partly = True

    def __init__(self, team: Team, staging: Staging, sliced: Split) -> None:
        """`sliced` is how each stage lies over slices."""
        self._team, self._sliced = team, sliced
        self.stages, self.schedule, self._most = staging.stages, staging.schedule, staging.micros
        self._rank, self._ranks = team.stages.rank, team.stages.size
        self._mail = Mail(team.stages)
        self._known: dict[Hashable, Shapes] = {}
        self._last: Micro | None = None
        """The last micro-batch of the last step."""
        self._uses: dict[str, tuple[int, ...]] = {}
        """By name in a checkpoint, the ranks that have a parameter or buffer."""
        self._counts: dict[int, bool] = {}
        self._gathered: GatheredStages | None = None
        """Where the state of the stages is sharded."""
        self.executed: Executed | None = None
        """The last step; None if its share was empty."""

    def place(self, model: nn.Module) -> nn.Module:
        """Cut the layers of all stages into slices."""
        return self._sliced.place(model)

    def keep_stages(self, model: nn.Module) -> None:
        """Keep the layers of this worker's stages."""
        stages = self.stages
        self.staged = Staged(model, stages, range(self._rank, len(stages), self._ranks))
        first = {name: tied.names[0] for tied in stages.tied for name in tied.names}
        self.aliases = {name: known for name, known in first.items() if name != known}
        tied = {one.names[0]: one.stages for one in stages.tied}
        places = {**stages.parameters, **stages.buffers, **tied}
        self._uses = {name: tuple(sorted({one % self._ranks for one in uses})) for name, uses in places.items()}

    def shard(self, word: str) -> None:
        """The state of the model lies over shards now, as this word of the plan says."""
        self._gathered = GatheredStages(self._team, word, self.staged)

    def gather(self) -> None:
        """Make the sharded state of these stages whole, until the model is resharded; who holds them calls this."""
        if self._gathered is not None:
            self._gathered.gather()

    def counts(self, parameter: nn.Parameter) -> bool:
        """On the first worker that has it, as far as that is the slice which counts."""
        if not self._counts:  # not before the model is sharded: its parameters are others then
            held = parameters_of(self.staged.model).items()
            self._counts = {id(one): self.writes(self.aliases.get(name, name)) for name, one in held}
        return self._counts[id(parameter)] and self._sliced.counts(parameter)

    def writes(self, name: str) -> bool:
        """What the stages of the workers before do not have."""
        return self._uses.get(name, (0,))[0] == self._rank

    # ------------------------------------------------------------- steps

    def run(self, share: Share) -> None:
        """Execute the table of so many micro-batches as the share has; an empty share computes nothing."""
        micros, gathered = share.micros(self._most), self._gathered
        self.executed = None
        if not micros and gathered is None:
            share.done([])
            return
        count = len(micros) if gathered is None else gathered.begin(len(micros))
        losses: list[Any] | None = None if count is None else []
        if count:
            execution = self._execution(micros, count, learns=True)
            losses = execution.run(self._rank)
            self.executed, self._last = (execution.executed, micros[-1]) if micros else (None, self._last)
        sound = losses is not None if gathered is None else gathered.end(lost=losses is None)
        share.done(losses if sound and self._add_tied() else None)

    def evaluate(self, cut: Callable[[int], Sequence[Micro]]) -> list[Any] | None:
        """The forwards of the table alone; the worker with the last stage has what they give."""
        micros = cut(self._most)
        self.gather()
        if not micros:
            return []
        with torch.no_grad():
            return self._execution(micros, len(micros), learns=False).run(self._rank)

    def _execution(self, micros: Sequence[Micro], count: int, *, learns: bool) -> Execution:
        """Of a table of `count` micro-batches."""
        steps = table(self.schedule, self._ranks, count)
        around = self._gathered.around if self._gathered is not None and learns else nullcontext
        return Execution(self.staged, self._mail, self._shapes, steps, micros, learns=learns, around=around)

    def tell(self, result: Tensor | None) -> Tensor | None:
        """From the worker with the last stage to those before it."""
        last, comm = self._ranks - 1, self._team.stages
        head = torch.zeros(2 + MOST_DIMENSIONS, dtype=torch.int64)
        if self._rank == last and result is not None:
            head[: 2 + result.dim()] = torch.tensor([_DTYPES.index(result.dtype), result.dim(), *result.shape])
        if not comm.broadcast(head, last).wait():
            return None
        kind, dimensions, *sizes = head.tolist()
        if self._rank == last and result is not None:
            told = result.detach().cpu().contiguous()
        else:
            told = torch.empty(sizes[:dimensions], dtype=_DTYPES[kind])
        return told if comm.broadcast(told, last).wait() else None

    def time_message(self) -> float:
        """Milliseconds that what this worker sends forwards takes to the next stage; all of a replica call this.

        Each pair of neighbours sends it there and back, one pair after the other; 0 on the last worker.
        """
        found = 0.0
        for rank in range(self._ranks - 1):
            if self._rank in (rank, rank + 1):
                trips = [self._trip(rank) for _ in range(TRIPS)]
                found = 500 * statistics.median(trips) if self._rank == rank else found
        return found

    def _trip(self, rank: int) -> float:
        """Seconds of one message from `rank` to the next one and back."""
        assert self._last is not None, "no step was executed"
        shapes, first = self._shapes(rank + 1, self._last)[0], self._rank == rank
        other, began = rank + first, time.perf_counter()
        expected = self._mail.expect(shapes, other, TIMED_TAG, "waits for a message that is timed")
        if first:
            made = [torch.empty(size, dtype=dtype) for size, dtype in shapes]
            self._mail.send(made, other, TIMED_TAG, "sends a message that is timed")
        came = self._mail.take(expected)
        if came is not None and not first:
            self._mail.send(came, other, TIMED_TAG, "sends back a message that is timed")
        return time.perf_counter() - began

    def _shapes(self, stage: int, micro: Micro) -> Shapes:
        """What `stage` receives for a micro-batch; remembered for all of its kind."""
        key = (stage, micro.kind, self.staged.model.training)
        if key not in self._known:
            specs = self.staged.specs(stage, micro.compute)
            self._known[key] = tuple((one.size, one.dtype) for one, _ in specs), tuple(back for _, back in specs)
        return self._known[key]

    # ------------------------------------------------------------- parameters of several stages

    def _add_tied(self) -> bool:
        """Add up the gradients of parameters that several workers have; False if one was lost."""
        shared = enumerate(self._shared())
        return all(one is None or self._add_up(one, ranks, number * self._ranks) for number, (one, ranks) in shared)

    def _add_up(self, parameter: nn.Parameter, ranks: Sequence[int], tag: int) -> bool:
        """The first of `ranks` adds up and sends the sum to the others, so that all have the same numbers."""
        gradient = parameter.grad
        total = torch.zeros_like(local_of(parameter)) if gradient is None else local_of(gradient)
        is_first = self._rank == ranks[0]
        if not is_first:
            self._mail.send([total], ranks[0], tag + self._rank, "sends a gradient")
        for other in ranks[1:] if is_first else ranks[:1]:
            waits = f"waits for a gradient of the worker with stage {other}"
            came = self._mail.take(self._mail.expect([(total.shape, total.dtype)], other, tag + other, waits))
            if came is None:
                return False
            part = came[0].to(total.device)
            total = total + part if is_first else part
        for other in ranks[1:] if is_first else ():
            self._mail.send([total], other, tag + self._rank, "sends a gradient")
        parameter.grad = like(parameter, total)
        return True

    def _shared(self) -> Iterator[tuple[nn.Parameter | None, tuple[int, ...]]]:
        """Trained parameters on several workers, in the same order on all; None where this worker has none of it."""
        own = dict(self.staged.model.named_parameters(remove_duplicate=False))
        for tied in self.stages.tied:
            ranks = self._uses[tied.names[0]]
            if len(ranks) > 1:
                found = next((own[name] for name in tied.names if name in own), None)
                yield (found if found is not None and found.requires_grad else None), ranks
