"""What steps come to: a worker's record of one, a part of a window, and what is written down once it is committed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from torch.optim import Optimizer

from cordee.core import heap
from cordee.core.events import WindowEvent
from cordee.core.record import Record
from cordee.diagnose.statistical import refuse_living
from cordee.sync.seam import Sync, Treatment
from cordee.train.windows import check_update, event_of, summed

if TYPE_CHECKING:
    from cordee.train.loops import Loop
    from cordee.train.stepper import Stepper

Told = tuple[float | None, float | None, bool]
"""Of an update: its gradient's norm, the learning rate, and whether the norm is yet to come."""


def record_of(stepper: Stepper, loop: Loop) -> Record:
    """This replica's record of the open step, or of its part of one."""
    channel, wish = stepper.team.channel, stepper.wish
    if loop.pieces is not None:
        refuse_living(stepper.buffers.changed())
    wishes = (wish.stop, channel.stop_reason is not None, wish.save, channel.newcomers)
    news = (not loop.windows.taken and stepper.buffers.news(), stepper.balancing.uneven)
    return Record(loop.losses.total(), loop.own_weight, *wishes, *news, loop.count, loop.digest)


def enter(
    stepper: Stepper,
    loop: Loop,
    records: Sequence[Record],
    own: Sequence[int],
    told: Told,
    window: WindowEvent | None = None,
) -> None:
    """Write down what is committed: a step, or those of a window, with this worker's samples of each."""
    grad_norm, rate, waits = told
    stepper.balancing.measure(loop)
    stepper.team.awaited = records[-1].admit > 0
    stepper.news = loop.enter(stepper.ledger, records, stepper.number, grad_norm, rate)
    stepper.last = last = stepper.news[-1]
    loop.committed = len(records)
    stepper.loops.trained(loop, last.epoch)
    stepper.team.steps = last.steps
    heap.warm(last.steps)
    stepper.reporter.commit(list(zip(stepper.news, own, strict=True)), waits=waits, window=window)
    stepper.balancing.committed(loop, records[-1])


def do_part(stepper: Stepper, loop: Loop, optimizer: Optimizer, clip: float | None) -> bool:
    """A part of a window is computed: update by it; True once all parts are done, and their steps are committed."""
    windows = loop.windows
    if not windows.take(loop):
        stepper.void(loop)
        return False
    check_update(windows, loop.updates, known=stepper.reducers.known(optimizer) is not None)
    sync = stepper.sync_of(optimizer)
    loop.updates += 1
    stepper.buffers.seen *= windows.begun  # since the last merge, which was at the end of the window before
    share = loop.count / loop.feeder.order.size(stepper.loops.current()[1].step)
    sync.in_hand = windows.in_hand(share, loop.feeder)
    stepper.reporter.arrives()
    treatment = Treatment(stepper.precision.scale, clip)
    agreed = sync.commit(partial(record_of, stepper, loop), void=False, treatment=treatment)
    assert agreed is not None
    seen = stepper.buffers.seen
    _, rate, _ = stepper.update(loop, optimizer, sync, agreed)
    if windows.again:  # buffers were merged with the window that it belongs to
        stepper.buffers.seen = seen
        stepper.buffers.bring_back(loop.buffers_before)
    over = windows.done(agreed.record, partial(_barrier, sync))
    if over is None:
        return False
    sync.in_hand = None
    windows.former = over.window if sync.under_way else None
    stepper.buffers.merge(stepper.team, parts=len(over.window.members))
    if windows.sends(loop):
        sync.begin_merge()
    event = event_of(over, stepper.number, behind=sync.under_way)
    enter(stepper, loop, summed(over), windows.own(over), (None, rate, False), event)
    return True


def _barrier(sync: Sync, behind: bool) -> bool:
    """Agree at the end of a window, whose merge may be left `behind`."""
    sync.behind = behind
    return sync.barrier()
