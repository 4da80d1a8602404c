"""The ledger of positions: where a worker stands whenever the members or the shares have changed, and at the end.

Between two of them nothing changes but the steps, so a few lines say what a worker has done in a run of any length:
`order_sha256` is chained over all its steps. `watch/audit.py` recomputes it from the order of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from cordee.core.events import PositionEvent
from cordee.feed.share import Shares
from cordee.group.alike import checksum
from cordee.group.sliced import local_of

if TYPE_CHECKING:
    from cordee.train.loops import Loop
    from cordee.train.stepper import Stepper


class Positions:
    """What one worker posts of them."""

    def __init__(self, stepper: Stepper) -> None:
        """Nothing is posted yet."""
        self._stepper = stepper
        self._last: tuple[int, Shares] | None = None
        """Generation and shares of the last one."""

    def begin(self, loop: Loop) -> None:
        """A step of this loop begins: post where it begins, if this generation or these shares are new."""
        if len(self._stepper.loops.open) > 1:  # the outermost loop is the one whose shares are agreed on
            return
        now = (self._stepper.team.membership.generation, loop.feeder.shares)
        if now == self._last:
            return
        before, self._last = self._last, now
        if before is None:
            self._post("start")
        else:
            self._post("regroup" if before[0] != now[0] else "shares")

    def leave(self) -> None:
        """Post the last one of a worker that leaves while the others go on."""
        self._post("leave")

    def end(self, parameters: Sequence[Tensor] = ()) -> None:
        """Post the last one, with a checksum of the parameters if they are given; they have to be merged."""
        self._post("end", checksum([local_of(one) for one in parameters]).hex() if parameters else "")

    def _post(self, why: Any, params_sha256: str = "") -> None:
        stepper = self._stepper
        membership, ledger, mesh = stepper.team.membership, stepper.ledger, stepper.team.lines.mesh
        worker = membership.worker
        stepper.team.channel.post(
            PositionEvent(
                worker,
                why,
                membership.generation,
                step=stepper.done,
                samples=ledger.samples,
                order_sha256=ledger.order_sha256,
                members=list(membership.members),
                owners=list(mesh.numbers),
                shares=[] if self._last is None else self._last[1].to_list(),
                part=mesh.inside(worker).index(worker),
                params_sha256=params_sha256,
            )
        )
