"""Evaluation and prediction: every sample exactly once, on any number of workers, with the result of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cordee.core.errors import DataError, JobError
from cordee.feed.batch import Batch
from cordee.feed.data import as_source
from cordee.feed.feeder import Feeder, Slot
from cordee.feed.order import Order
from cordee.feed.share import Shares
from cordee.feed.source import Source
from cordee.group.team import Team
from cordee.split.seam import Micro, Split
from cordee.split.shard import reshard
from cordee.sync.batchnorm import StepState, together
from cordee.sync.tree import total
from cordee.train.gathering import gathering
from cordee.train.job import Job
from cordee.train.metrics import Lost, SumTally, mean_of, tally_of
from cordee.train.precision import Precision, widened
from cordee.train.session import Session, stepper_of
from cordee.train.shares import cut_rows, kind_of


def evaluate(
    job: Job,
    model: nn.Module,
    source: Source,
    team: Team,
    split: Split,
    *,
    batch: int,
    precision: Precision,
    pieces: int = 0,
) -> dict[str, float]:
    """Loss and metrics over all samples of `source`; the same on every worker. Starts again when a peer is lost.

    Shares do not wait for each other, unless layers need statistics of the whole batch, or the objective gathers it.
    What we cannot know of: empty shares compute along, silently. Of a pipeline, the worker with the last stage counts.
    Under exact=true batches are computed in so many `pieces`.
    """
    order = Order(len(source), batch, shuffle="none")

    def compute(part: Batch) -> tuple[Tensor, Any]:
        with precision.autocast():
            return job.compute(model, part)

    if pieces:
        return _evaluate_pieces(job, model, compute, Feeding(source, order, team, pieces))
    while True:
        tallies = {name: tally_of(name, metric) for name, metric in job.metrics.items()}
        losses = torch.zeros(3, dtype=torch.float64)  # weighted sum of losses, weight, samples
        feeder = _feeder(model, source, order, team)
        with _evaluating(model), together(model, team.layers) as state, gathering(feeder, state):
            for step in range(order.steps):
                mine = feeder.take(Slot(0, step), ahead=step + 1 < order.steps)
                state.silent = mine.borrowed
                results = _parts(split, mine, compute)
                state.void |= results is None
                for part, (loss, output) in results or ():
                    weight = float(job.weigh(part) if job.weigh else len(part))
                    total = float(loss.detach()) * weight if weight else 0.0
                    losses += torch.tensor([total, weight, len(part)], dtype=torch.float64)
                    for tally in tallies.values():
                        tally.update(widened(output), job.target_of(part))
            void = state.void  # behind this block it is that of the step around the evaluation
        values = torch.zeros(len(tallies), dtype=torch.float64)
        try:
            if not void and team.stages.rank == team.stages.size - 1:
                for place, tally in enumerate(tallies.values()):
                    tally.merge(team)
                    values[place] = tally.value()
        except Lost:
            void = True
        told = None if void else split.tell(torch.cat([losses, values]))
        if told is not None:
            losses, values = told[:3].clone(), told[3:]
        if _agree(team, [losses], void=told is None):
            break
    if int(losses[2]) != len(source):
        raise DataError(f"evaluated {int(losses[2])} samples of {len(source)}: a defect of Cordée, please report it")
    result = {} if losses[1] == 0 else {"loss": float(losses[0] / losses[1])}
    return result | dict(zip(tallies, values.tolist(), strict=True))


class Feeding(NamedTuple):
    """What is evaluated in pieces, and by which worker."""

    source: Source
    order: Order
    team: Team
    pieces: int


def _evaluate_pieces(
    job: Job, model: nn.Module, compute: Callable[[Batch], tuple[Tensor, Any]], feeding: Feeding
) -> dict[str, float]:
    """The same bits on any workers: each piece has a row of its own, and rows are added up in a fixed tree."""
    source, order, team, pieces = feeding
    names = list(job.metrics)
    while True:
        table = torch.zeros((order.steps, pieces, 3 + 2 * len(names)), dtype=torch.float64)
        feeder = _feeder(model, source, order, team, pieces)
        with _evaluating(model), gathering(feeder, StepState()):
            for step in range(order.steps):
                for piece in feeder.own_micros(Slot(0, step)):
                    mine = feeder.take(Slot(0, step, piece), ahead=step + 1 < order.steps)
                    if not mine.borrowed:
                        table[step, piece] = _row(job, mine, *compute(mine))
        if team.agree([table]):
            break
    sums = [total(column) for column in table.view(order.steps * pieces, -1).T.tolist()]
    if int(sums[2]) != len(source):
        raise DataError(f"evaluated {int(sums[2])} samples of {len(source)}: a defect of Cordée, please report it")
    result = {} if sums[1] == 0 else {"loss": sums[0] / sums[1]}
    return result | {name: mean_of(*sums[3 + 2 * at : 5 + 2 * at]) for at, name in enumerate(names)}


def _row(job: Job, part: Batch, loss: Tensor, output: Any) -> Tensor:
    """Loss, weight, samples, and each metric's sum and count."""
    weight = float(job.weigh(part) if job.weigh else len(part))
    row = [float(loss.detach()) * weight if weight else 0.0, weight, float(len(part))]
    for name, metric in job.metrics.items():
        tally = tally_of(name, metric)
        if not isinstance(tally, SumTally):
            raise JobError(
                f"metric {name!r} is of torchmetrics, which merges what workers counted in its own order, while "
                "exact=true adds up in a fixed one: give a function of (output, target), or leave exact=true out"
            )
        tally.update(widened(output), job.target_of(part))
        row += tally.state.tolist()
    return torch.tensor(row, dtype=torch.float64)


def predict(model: nn.Module, data: Any, session: Session | None = None, *, batch: int = 256) -> Tensor:
    """The model's outputs for all samples of `data`, in their order, on every worker.

    With a session every worker calls it and computes a share of each batch; without one this process computes all.
    """
    source, team = as_source(data), stepper_of(session).team if session is not None else Team()
    split = stepper_of(session).split if session is not None else Split()
    order = Order(len(source), batch, shuffle="none")
    pieces = []
    feeder = _feeder(model, source, order, team)
    with _evaluating(model), together(model, team.layers) as state, gathering(feeder, state):
        for step in range(order.steps):
            while True:
                mine = feeder.take(Slot(0, step), ahead=step + 1 < order.steps)
                state.silent, state.void = mine.borrowed, False
                output = _output(model, split, mine)
                state.void |= output is None
                if output is None:
                    output = torch.zeros(0)
                whole = torch.zeros((order.size(step), *output.shape[1:]), dtype=output.dtype)
                if not (mine.borrowed or state.void):
                    whole[mine.positions.start : mine.positions.stop] = output.cpu()  # type: ignore[union-attr]
                generation = team.membership.generation
                agreed = _agree(team, [whole], void=state.void)
                if team.membership.generation != generation:
                    feeder.forget()
                if agreed:
                    break
            pieces.append(whole)
    return torch.cat(pieces)


def _parts(split: Split, mine: Batch, compute: Callable[[Batch], Any]) -> list[tuple[Batch, Any]] | None:
    """What `compute` gives for my share, in parts as the split computes them, where it has them; None: one was lost.

    A borrowed sample is computed if a whole model computes it, for layers that meet others; it gives nothing.
    """
    parts: list[Batch] = []

    def cut(most: int) -> list[Micro]:
        parts[:] = [mine] if most == 1 else cut_rows(mine, most)
        return [Micro(partial(compute, part), kind=kind_of(part, "evaluation")) for part in parts]

    results = split.evaluate(cut)
    if results is None:
        return None
    return [] if mine.borrowed else list(zip(parts, results, strict=False))


def _output(model: nn.Module, split: Split, mine: Batch) -> Tensor | None:
    """The model's output for my share, on all workers of the replica; None if one was lost."""
    results = split.evaluate(
        lambda most: [
            Micro(partial(model, part.x), kind=kind_of(part, "prediction"))
            for part in ([mine] if most == 1 or mine.borrowed else cut_rows(mine, most))
        ]
    )
    return None if results is None else split.tell(torch.cat(results) if results else None)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; the former mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
        reshard(model)


def _feeder(model: nn.Module, source: Source, order: Order, team: Team, pieces: int = 0) -> Feeder:
    """Of equal shares, or of whole pieces, to where the model's first parameter lies."""
    device = next((str(parameter.device) for parameter in model.parameters()), "cpu")
    return Feeder(
        source, order, Shares(), team, accumulate=pieces or 1, whole=pieces > 0, device=device, training=False
    )


def _agree(team: Team, tensors: Sequence[Tensor], *, void: bool) -> bool:
    """Add up over all members; `void`: a collective failed in the forward pass, so this is not to be used."""
    return team.settle((), tensors, void=True) if void else team.agree(tensors)
