"""`share=balanced`: shares follow the measured speed of each replica, so that all come to the collective together.

A replica's rate is its samples per second from the end of the step before to its arrival, without what it waited in
collectives. All agree on a table of rates after three steps of a generation, and whenever the record of a step says
that a replica's rate has changed; `balance` decides. A change takes effect two steps later: the next step is read
already. Rates of short steps are noise: they are measured over more steps, and one change soon after the other is
followed by longer and longer waits, so that noise alone changes shares ever more seldom.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import TYPE_CHECKING

import torch

from cordee.core.errors import PlanError
from cordee.core.events import SharesEvent
from cordee.core.record import Record
from cordee.feed.balance import balance, sizes_of
from cordee.feed.coming import micro_sizes

if TYPE_CHECKING:
    from cordee.train.loops import Loop
    from cordee.train.stepper import Stepper

MEASURED, MOST_MEASURED = 3, 99
"""Steps whose median is a replica's rate: at least, and at most."""
MEASURED_S = 0.25
"""They take at least so long, unless that would be too many of them."""
SOON = 2
"""Changes in a row, each as soon as the one before is measured; each one more waits twice as long."""
LONGEST = 6
"""So often it is doubled at most."""
UNEVEN = 0.15
"""By how much a rate differs from that of the last decision before all decide again."""


class Balancing:
    """Measures the speed of this replica, and changes shares together with the others."""

    def __init__(self, stepper: Stepper) -> None:
        """Nothing is measured yet."""
        self._stepper, self._on = stepper, stepper.plan.share == "balanced"
        if self._on and stepper.device.startswith("cuda"):
            raise PlanError(
                "share=balanced was not tried on GPUs yet: the rate of a worker is that at which it computes, and a "
                "GPU goes on after the worker has handed its work over. Give the speeds that you know: "
                "proportions=2:1, one number per worker"
            )
        self._rates: deque[float] = deque(maxlen=MEASURED)
        self._decided = 0.0
        """The rate at the last decision; 0 before the first."""
        self._length, self._changes = MEASURED, 0
        """Steps that a rate is measured over; and changes in a row that no replica asked for. Alike on all workers."""
        self._due = 0
        """After so many steps all decide, whatever they measured; 0: only when a rate has changed."""
        self._skip = 0
        """Up to this step the shares are not those that were decided on last."""
        self._where = (-1, -1)
        """The loop and the generation of what is measured."""
        self._why = ""

    def begin(self) -> None:
        """A step begins, the same one on all workers: measure anew in a new generation, and in a new loop."""
        loops = self._stepper.loops
        now = (loops.begun, self._stepper.team.membership.generation)
        if self._on and now != self._where and len(loops.open) == 1:
            self._why = "other members" if now[0] == self._where[0] else "the start"
            self._where, self._length, self._changes = now, MEASURED, 0
            self._restart(self._stepper.done)

    @property
    def uneven(self) -> bool:
        """Whether this replica's rate is no longer that of the last decision."""
        if not self._decided or len(self._rates) < self._length:
            return False
        return abs(statistics.median(self._rates) / self._decided - 1.0) > UNEVEN

    def measure(self, loop: Loop) -> None:
        """A step is over; of a replica on several workers the first one measures."""
        team = self._stepper.team
        if not self._on or self._stepper.done < self._skip or team.slices.rank or team.stages.rank:
            return
        if len(self._stepper.loops.open) > 1:
            return
        seconds = self._stepper.reporter.whole_s if team.sliced else self._stepper.reporter.busy_s
        if loop.count and seconds > 0.0:
            self._rates.append(loop.count / seconds)

    def committed(self, loop: Loop, record: Record) -> None:
        """A step is committed everywhere: decide, if it is time. All workers call this, and come to the same."""
        done = self._stepper.done
        is_due = 0 < self._due <= done  # that step may have been one of a loop inside
        if not self._on or len(self._stepper.loops.open) > 1 or not (is_due or record.uneven):
            return
        if done < self._skip:  # what was wished before the last change took effect
            return
        self._why, self._changes = (self._why, self._changes) if is_due else ("a replica's speed has changed", 0)
        self._decide(loop, done)

    def _decide(self, loop: Loop, done: int) -> None:
        team, order, (_, batch) = self._stepper.team, loop.feeder.order, self._stepper.loops.current()
        step = batch.epoch * order.steps + batch.step
        owners, count = team.lines.mesh.numbers, team.shares
        before = loop.feeder.shares.at(step + 1)
        rate = statistics.median(self._rates) if self._rates else 0.0
        while True:
            # Of a worker that was handed the result over, the members may be others by now: not those of the table.
            table = torch.zeros(count, dtype=torch.float64)
            if team.share < count:
                table[team.share] = rate
            if team.agree([table]):
                break
            owners, count = team.lines.mesh.numbers, team.shares
        rates = table.tolist()
        # By micro-batches: a share that is empty in each of them would never be measured again.
        micros = micro_sizes(order, loop.feeder.accumulate, 0)
        sizes = sizes_of(before, micros[:1], owners)
        seconds = [size / rate if rate else 0.0 for size, rate in zip(sizes, rates, strict=True)]
        self._measure_over(max(seconds) * len(micros))
        share = balance(sizes, seconds, micros[0], owners)
        if share is None:
            self._decided, self._due, self._changes = rate, 0, 0
            return
        self._stepper.loops.cut(loop, share, step + 2)
        cuts = sizes_of(before, micros, owners), sizes_of(share, micros, owners)
        milliseconds = [round(1e3 * size / rate, 3) if rate else 0.0 for size, rate in zip(cuts[0], rates, strict=True)]
        self._stepper.reporter.tell(SharesEvent(done + 2, list(owners), *cuts, milliseconds, self._why))
        self._changes += 1
        self._restart(done + 1)
        if self._changes > SOON:  # a replica that becomes slower meanwhile says so
            self._decided = rate
        self._why = "the shares have changed"

    def _measure_over(self, seconds: float) -> None:
        """Rates are those of so many steps from here on that they say something, if each takes so long.

        An odd number: between a former speed and the present one there is no median.
        """
        steps = math.ceil(MEASURED_S / seconds) if seconds else MEASURED
        self._length = min(max(MEASURED, steps | 1), MOST_MEASURED)
        self._rates = deque(self._rates, maxlen=self._length)

    def _restart(self, first: int) -> None:
        """Measure from the step after so many on."""
        self._rates.clear()
        waits = 2 ** min(max(self._changes - SOON, 0), LONGEST)
        self._decided, self._skip, self._due = 0.0, first, first + self._length * waits
