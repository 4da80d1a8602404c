"""What a worker tells of its steps: where their time went, what it uses, and, for all workers, what they came to."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import NamedTuple

import psutil
import torch

from cordee.core.cgroup import cpu_quota
from cordee.core.events import Event, StepEvent, TimesEvent, UsageEvent, WindowEvent, WorkerEvent
from cordee.core.times import percentiles
from cordee.core.world import World
from cordee.group.meter import Reading
from cordee.group.team import Team
from cordee.train.feeding import Fed
from cordee.train.ledger import Committed

WRITE_EVERY_S = 0.05
"""How often a worker writes down what became of its steps: many short ones together cost less."""
SEND_EVERY_S = 0.25
"""How often it sends where its time went."""
USAGE_EVERY_S = 1.0
"""How often a worker sends what it uses."""
STEPS_KEPT = 100_000
"""So many of the last steps count for the percentiles of a result: a long run must not take more and more memory."""


class Over(NamedTuple):
    """A step that is over, as it is kept until it is sent; times in seconds."""

    done: Committed
    mine: int
    """Samples of this worker."""
    whole: float
    data: float
    callbacks: float
    late: float
    """Since all gradients of this worker were there."""
    clock: float
    cost: Reading
    """Of its communication."""
    window: WindowEvent | None = None
    """The window that it is the last step of."""

    def record(self) -> StepEvent:
        """What the run's record says of it."""
        done, ms, at = self.done, round(self.whole * 1e3, 4), round(self.clock, 6)
        return StepEvent(done.number + 1, done.epoch, done.loss, done.samples, ms, done.grad_norm, done.lr, at)


def times_of(worker: int, steps: Sequence[Over]) -> TimesEvent:
    """Where the time of consecutive steps of a worker went."""
    costs = [one.cost for one in steps]
    return TimesEvent(
        worker,
        steps[0].done.number,
        data_ms=_milliseconds(one.data for one in steps),
        compute_ms=_milliseconds(one.whole - one.data - one.cost.blocked_s - one.callbacks for one in steps),
        blocked_ms=_milliseconds(one.blocked_s for one in costs),
        waited_ms=_milliseconds(one.waited_s for one in costs),
        samples=[one.mine for one in steps],
        arrived=[round(one.clock - one.late, 6) for one in steps],
        callbacks_ms=_milliseconds(one.callbacks for one in steps),
        hidden_ms=_milliseconds(one.hidden_s for one in costs),
        sent=[one.bytes_sent for one in costs],
        plain=[one.bytes_plain for one in costs],
        paused_ms=_milliseconds(one.paused_s for one in costs),
    )


def _milliseconds(seconds: Iterable[float]) -> list[float]:
    return [round(value * 1e3, 4) for value in seconds]


class Reporter:
    """Times the steps of this worker, and tells the hub of them.

    A step lasts from the end of the one before to its own: whatever happened in between belongs to it, except what is
    put `aside`.
    """

    def __init__(self, team: Team) -> None:
        """Nothing to tell yet."""
        self.total_s = 0.0
        """How long all steps took together."""
        self._steps_s: deque[float] = deque(maxlen=STEPS_KEPT)
        self._unsent: list[Over] = []
        """Steps that are written down, of which no times were sent yet."""
        self._over: deque[Over] = deque()
        """Steps that are not written down yet."""
        self._waits = False
        """Whether the last of them waits for its gradient's norm."""
        self.aside_s: dict[str, float] = {}
        """Time that belongs to no step, by kind."""
        self._team = team
        self._gathering = Lock()
        self.fed = Fed(team)
        team.channel.before_end = self.send
        self._recent: deque[StepEvent | WindowEvent] = deque(maxlen=4096)
        self._written_at = self._sent_at = self._usage_at = 0.0
        self._asked = self._arrived = 0.0
        self.whole_s = self.busy_s = 0.0
        """From the step before until this worker arrived, without callbacks; and without waits for others."""
        self.start()

    def introduce(self, device: str, threads: int) -> None:
        """Say who this worker is."""
        worker, host, node = self._team.channel.worker, socket.gethostname(), World.from_env().node
        self._team.channel.post(WorkerEvent(worker, host, os.getpid(), device, threads, shared_cores(), node))
        self._team.channel.post(usage(self._team))  # what was used until now, so that what comes is told from it
        self._team.channel.send()  # known before the run says what it trains

    def start(self) -> None:
        """From here on the time belongs to the next step."""
        self._began = time.perf_counter()
        self._data = self._callbacks = 0.0
        self._before = self._team.meter.reading()

    @contextmanager
    def aside(self, kind: str) -> Iterator[None]:
        """What happens in here belongs to no step."""
        self.write()  # it may take a while
        began = time.perf_counter()
        before = self._team.meter.reading()
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            self.aside_s[kind] = self.aside_s.get(kind, 0.0) + spent
            self._began += spent
            self._before = self._team.meter.reading().less(before.less(self._before))

    @contextmanager
    def calling_back(self) -> Iterator[None]:
        """What happens in here is the work of callbacks: a part of the next step, but not of its computation."""
        began, blocked = time.perf_counter(), self._team.meter.blocked_s
        try:
            yield
        finally:
            self._callbacks += time.perf_counter() - began - (self._team.meter.blocked_s - blocked)

    def asks(self) -> None:
        """From here on the step waits for data."""
        self._asked = time.perf_counter()

    def got(self) -> None:
        """The data has come."""
        self._data += time.perf_counter() - self._asked

    def arrives(self) -> None:
        """All gradients of this worker are there: stamped before it waits for those of the others."""
        self._arrived = time.perf_counter()
        self.whole_s = self._arrived - self._began - self._callbacks
        self.busy_s = self.whole_s - (self._team.meter.blocked_s - self._before.blocked_s)

    def step_ms(self) -> dict[str, float]:
        """Percentiles of the time of a step."""
        if not self._steps_s:
            return {}
        values = _milliseconds(percentiles(self._steps_s, 50, 95, 99))
        return dict(zip(("p50", "p95", "p99"), values, strict=True))

    def commit(
        self, steps: Sequence[tuple[Committed, int]], *, waits: bool = False, window: WindowEvent | None = None
    ) -> None:
        """Steps are over, each with samples of this worker: note where their time went, in equal parts.

        If the last one `waits` for its gradient's norm, that is yet to `come`. `window`: they are those of a window.
        """
        team, began, data, callbacks = self._team, self._began, self._data, self._callbacks
        cost = team.meter.reading().less(self._before)
        self.came(None)
        self.start()
        now, count = self._began, len(steps)
        times = ((now - began) / count, data / count, callbacks / count, now - self._arrived, team.membership.clock())
        for place, (done, mine) in enumerate(steps):
            self._over.append(Over(done, mine, *times, cost.part(place, count)))
        if window is not None:
            self._over.append(self._over.pop()._replace(window=window))
        self._waits = waits
        if now - self._written_at > WRITE_EVERY_S:
            self._written_at = now
            self.write()
            if now - self._sent_at > SEND_EVERY_S:
                self._sent_at = now
                self.send_timing()
                if now - self._usage_at > USAGE_EVERY_S:
                    self._usage_at = now
                    team.channel.post(usage(team))
        team.channel.heed()

    def came(self, grad_norm: float | None) -> None:
        """The gradient's norm of the last step is known, or not to be known."""
        if self._waits:
            self._waits = False
            last = self._over.pop()
            self._over.append(last._replace(done=replace(last.done, grad_norm=grad_norm)))

    def write(self, *, tell: bool = True) -> None:
        """Write down the steps that are over; one worker tells of them for all.

        All keep them, in case the one that speaks dies before they were sent.
        """
        channel, speaks = self._team.channel, tell and self._team.speaks
        with self._gathering:  # to the end: another thread may be about to end this process
            while len(self._over) > self._waits:
                over = self._over.popleft()
                self._unsent.append(over)
                self._steps_s.append(over.whole)
                self.total_s += over.whole
                for record in (over.record(),) if over.window is None else (over.window, over.record()):
                    self._recent.append(record)
                    if speaks:
                        channel.post(record)

    def tell(self, event: Event) -> None:
        """Something for the record of the run, said by one worker for all."""
        if self._team.speaks:
            self.write()  # what happened before it
            self._team.channel.post(event)

    def send(self) -> None:
        """Send all that there is to say, at the end; also from another thread, when the run ends early."""
        self.came(None)
        self.write()
        self.send_timing()
        self._team.channel.post(usage(self._team))
        self.fed.send()

    def send_timing(self) -> None:
        """Send what has gathered."""
        with self._gathering:
            steps, self._unsent = self._unsent, []
        if steps:
            self._team.channel.post(times_of(self._team.channel.worker, steps))

    def repeat(self) -> None:
        """The members changed: the worker that speaks for all now posts what the hub has not on record."""
        self.write(tell=False)  # but below
        channel = self._team.channel
        if self._team.speaks:
            for record in self._recent:
                if (record.step if isinstance(record, StepEvent) else record.last) > channel.recorded:
                    channel.post(record)


def shared_cores() -> float:
    """How many cores the workers of this host may use together: our parent's, as each of us may be bound to some."""
    try:
        cores = os.sched_getaffinity(os.getppid())
    except OSError:  # it has ended
        cores = os.sched_getaffinity(0)
    quota = cpu_quota()
    return len(cores) if quota is None else min(len(cores), quota)


def usage(team: Team) -> UsageEvent:
    """What this process uses now."""
    gpu = torch.cuda.max_memory_reserved() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]
    return UsageEvent(
        team.channel.worker,
        cpu_s=round(time.process_time(), 3),
        memory_mb=round(psutil.Process().memory_info().rss / 2**20, 1),
        gpu_mb=round(gpu / 2**20, 1),
        bytes_sent=team.meter.bytes_sent,
        at=round(team.membership.clock(), 6),
        bytes_near=team.meter.bytes_near,
        bytes_plain=team.meter.bytes_plain,
        bytes_received=team.meter.bytes_received,
    )
