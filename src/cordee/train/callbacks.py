"""Callbacks observe a run; they are called on every worker, at the same points of the training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cordee.train.ledger import Committed
    from cordee.train.session import Session


class Callback:
    """Subclass and override what you want to see. `session.rank == 0` is the worker that speaks for all."""

    def on_start(self, session: Session) -> None:
        """Before the first step of this start of the run."""

    def on_step(self, session: Session, step: Committed) -> None:
        """After a step was committed everywhere."""

    def on_epoch(self, session: Session, epoch: int) -> None:
        """After the last step of an epoch, before it is evaluated."""

    def on_evaluation(self, session: Session, part: str, metrics: Mapping[str, float]) -> None:
        """After `validation` or `test` was evaluated; the values are the same on every worker."""

    def on_end(self, session: Session) -> None:
        """After the last step and the last evaluation."""
