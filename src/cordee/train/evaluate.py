"""Evaluation and prediction: every sample exactly once, on any number of workers, with the result of one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cordee.core.errors import DataError
from cordee.feed.data import as_source
from cordee.feed.feeder import Feeder, Slot
from cordee.feed.order import Order
from cordee.feed.share import Shares
from cordee.feed.source import Source
from cordee.group.team import Team
from cordee.split.shard import reshard
from cordee.sync.batchnorm import together
from cordee.train.gathering import gathering
from cordee.train.job import Job
from cordee.train.metrics import Lost, tally_of
from cordee.train.precision import Precision, widened
from cordee.train.session import Session, stepper_of


def evaluate(
    job: Job, model: nn.Module, source: Source, team: Team, *, batch: int, precision: Precision
) -> dict[str, float]:
    """Loss and metrics over all samples of `source`; the same on every worker. Starts again when a peer is lost.

    Shares do not wait for each other, unless layers need statistics of the whole batch, or the objective gathers it.
    What we cannot know of: empty shares compute along, silently.
    """
    order = Order(len(source), batch, shuffle="none")
    while True:
        tallies = {name: tally_of(name, metric) for name, metric in job.metrics.items()}
        losses = torch.zeros(3, dtype=torch.float64)  # weighted sum of losses, weight, samples
        feeder = _feeder(model, source, order, team)
        with _evaluating(model), together(model, team.layers) as state, gathering(feeder, state):
            for step in range(order.steps):
                mine = feeder.take(Slot(0, step), ahead=step + 1 < order.steps)
                state.silent = mine.borrowed
                with precision.autocast():
                    loss, output = job.compute(model, mine)
                if mine.borrowed:
                    continue
                weight = float(job.weigh(mine) if job.weigh else len(mine))
                total = float(loss.detach()) * weight if weight else 0.0
                losses += torch.tensor([total, weight, len(mine)], dtype=torch.float64)
                for tally in tallies.values():
                    tally.update(widened(output), job.target_of(mine))
            void = state.void  # behind this block it is that of the step around the evaluation
        try:
            for tally in tallies.values() if not void else ():
                tally.merge(team)
        except Lost:
            void = True
        if _agree(team, [losses], void=void):
            break
    if int(losses[2]) != len(source):
        raise DataError(f"evaluated {int(losses[2])} samples of {len(source)}: a defect of Cordée, please report it")
    result = {} if losses[1] == 0 else {"loss": float(losses[0] / losses[1])}
    return result | {name: tally.value() for name, tally in tallies.items()}


def predict(model: nn.Module, data: Any, session: Session | None = None, *, batch: int = 256) -> Tensor:
    """The model's outputs for all samples of `data`, in their order, on every worker.

    With a session every worker calls it and computes a share of each batch; without one this process computes all.
    """
    source, team = as_source(data), stepper_of(session).team if session is not None else Team()
    order = Order(len(source), batch, shuffle="none")
    pieces = []
    feeder = _feeder(model, source, order, team)
    with _evaluating(model), together(model, team.layers) as state, gathering(feeder, state):
        for step in range(order.steps):
            while True:
                mine = feeder.take(Slot(0, step), ahead=step + 1 < order.steps)
                state.silent, state.void = mine.borrowed, False
                output = model(mine.x)
                whole = torch.zeros((order.size(step), *output.shape[1:]), dtype=output.dtype)
                if not mine.borrowed:
                    whole[mine.positions.start : mine.positions.stop] = output.cpu()  # type: ignore[union-attr]
                generation = team.membership.generation
                agreed = _agree(team, [whole], void=state.void)
                if team.membership.generation != generation:
                    feeder.forget()
                if agreed:
                    break
            pieces.append(whole)
    return torch.cat(pieces)


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


def _feeder(model: nn.Module, source: Source, order: Order, team: Team) -> Feeder:
    """Of equal shares, to where the model's first parameter lies."""
    device = next((str(parameter.device) for parameter in model.parameters()), "cpu")
    return Feeder(source, order, Shares(), team, device=device)


def _agree(team: Team, tensors: Sequence[Tensor], *, void: bool) -> bool:
    """Add up over all members; `void`: a collective failed in the forward pass, so this is not to be used."""
    return team.settle((), tensors, void=True) if void else team.agree(tensors)
