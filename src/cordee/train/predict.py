"""`cordee.predict`: a model's outputs for all samples, computed by all workers."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from cordee.feed.data import as_source
from cordee.group.team import Team
from cordee.train import evaluate
from cordee.train.session import Session, stepper_of


def predict(model: nn.Module, data: Any, session: Session | None = None, *, batch: int = 256) -> Tensor:
    """The model's outputs for all samples of `data`, in their order, on every worker.

    With a session every worker calls it and computes a share of each batch; without one this process computes all.
    """
    team = stepper_of(session).team if session is not None else Team()
    return evaluate.predict(model, as_source(data), team, batch=batch)
