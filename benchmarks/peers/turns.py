"""Cordée's side of taking turns: a callback that blocks between two steps."""

from __future__ import annotations

from collections.abc import Callable

from pace import Pace

from cordee.train.callbacks import Callback
from cordee.train.session import Session


class Turns(Callback):
    """Blocks between two steps while it is not our turn."""

    def __init__(
        self,
        path: str,
        side: str,
        *,
        settle: Callable[[], object] | None = None,
        keep: Callable[[], str] | None = None,
    ) -> None:
        """Connect at the start of the training; `settle` and `keep` are those of `Pace`."""
        self._path, self._side, self._settle, self._keep = path, side, settle, keep
        self._pace: Pace | None = None

    def on_start(self, session: Session) -> None:
        """Everything is ready for the first step."""
        self._pace = Pace(self._path, self._side, session.rank, settle=self._settle, keep=self._keep)

    def on_step(self, session: Session, step: object) -> None:
        """A step was committed."""
        assert self._pace is not None
        self._pace.step()

    def ended(self, step: object) -> bool:
        """Whether to stop."""
        return self._pace is None or self._pace.ended
