"""What a worker keeps of the steps that were committed: which samples, what loss, where the time went."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cordee.feed.digest import chain, delivered
from cordee.feed.order import Order
from cordee.group.rope import Rope

SEND_EVERY_S = 0.25
"""How often a worker sends where its time went."""
LIMBS = 8
"""A digest travels as eight bytes, each a small whole number, so that a float32 sum over 65,536 replicas is exact."""


def to_limbs(digest: int) -> list[float]:
    """A 64-bit digest as numbers that add up exactly."""
    return [float(byte) for byte in digest.to_bytes(LIMBS, "little")]


def from_limbs(limbs: Sequence[float]) -> int:
    """The sum of digests, modulo 2**64, from the sums of their limbs."""
    return sum(int(limb) << (8 * place) for place, limb in enumerate(limbs)) % 2**64


@dataclass(frozen=True)
class Committed:
    """A step that happened everywhere."""

    number: int
    """Steps before it, over all epochs."""
    epoch: int
    step: int
    loss: float
    samples: int
    stop: bool
    """Some replica wished to stop after this step, or was asked to."""
    asked: bool
    """It was the launcher who asked to stop (Ctrl-C)."""
    save: bool
    """Some replica wished a checkpoint after this step."""


@dataclass
class Ledger:
    """The samples of all committed steps, as delivered: every replica reaches the same ledger."""

    order_sha256: str = ""
    samples: int = 0
    lost: int = 0
    repeated: int = 0

    def enter(self, order: Order, epoch: int, step: int, count: int, digest: int) -> None:
        """A step was committed in which `count` samples with this digest reached the replicas."""
        expected_count = order.size(step)
        expected = delivered(order.ids(epoch, step), range(expected_count))
        if (count, digest) != (expected_count, expected):
            # Of two equal counts with different digests at least one sample is missing and one is there twice.
            self.lost += max(expected_count - count, 1 if count == expected_count else 0)
            self.repeated += max(count - expected_count, 1 if count == expected_count else 0)
        self.samples += count
        self.order_sha256 = chain(self.order_sha256, epoch * order.steps + step, digest, count)

    def to_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "order_sha256": self.order_sha256,
            "samples": self.samples,
            "lost": self.lost,
            "repeated": self.repeated,
        }


@dataclass
class Timing:
    """The parts of every step on this worker, in seconds, gathered until they are sent."""

    first_step: int = 0
    data: list[float] = field(default_factory=list)
    compute: list[float] = field(default_factory=list)
    blocked: list[float] = field(default_factory=list)
    """Waiting for peers and communication together: only all workers' arrivals can tell them apart."""
    arrived: list[float] = field(default_factory=list)
    """When this worker came to the collective, in the hub's clock: stamped before it."""
    steps: list[float] = field(default_factory=list)
    """Whole steps; kept for the percentiles of the result."""

    def add(self, step: int, *, data: float, compute: float, blocked: float, arrived: float) -> None:
        """One committed step."""
        if not self.data:
            self.first_step = step
        self.data.append(data)
        self.compute.append(compute)
        self.blocked.append(blocked)
        self.arrived.append(arrived)
        self.steps.append(data + compute + blocked)

    def drain(self) -> dict[str, Any] | None:
        """What has gathered since the last time, ready to be sent."""
        if not self.data:
            return None
        record = {
            "from": self.first_step,
            "data_ms": _milliseconds(self.data),
            "compute_ms": _milliseconds(self.compute),
            "blocked_ms": _milliseconds(self.blocked),
            "arrived": [round(stamp, 6) for stamp in self.arrived],
        }
        self.data, self.compute, self.blocked, self.arrived = [], [], [], []
        return record

    def percentiles(self) -> dict[str, float]:
        """Latency of a step in milliseconds."""
        if not self.steps:
            return {}
        values = np.percentile(np.asarray(self.steps) * 1e3, [50, 95, 99])
        return {name: round(float(value), 4) for name, value in zip(("p50", "p95", "p99"), values, strict=True)}


def _milliseconds(seconds: list[float]) -> list[float]:
    return [round(value * 1e3, 4) for value in seconds]


class Reporter:
    """Times the steps of this worker, and tells the hub of them."""

    def __init__(self, rope: Rope) -> None:
        """Nothing to tell yet."""
        self.timing = Timing()
        self._rope = rope
        self._recent: deque[dict[str, Any]] = deque(maxlen=4096)
        self._sent_at = 0.0
        self._began = self._asked = self._arrived = 0.0
        self._data = 0.0
        self._blocked_before = 0.0

    def begin(self) -> None:
        """A step begins."""
        self._began = self._asked = time.perf_counter()
        self._data = 0.0
        self._blocked_before = self._rope.blocked_s

    def asks(self) -> None:
        """From here on the step waits for data."""
        self._asked = time.perf_counter()

    def got(self) -> None:
        """The data has come."""
        self._data += time.perf_counter() - self._asked

    def arrives(self) -> None:
        """All gradients of this worker are there: stamped before it waits for those of the others."""
        self._arrived = time.perf_counter()

    def commit(self, done: Committed) -> None:
        """The step is over: write down where its time went and tell of it, one worker for all.

        The others keep it, in case the one that speaks dies before it was sent.
        """
        now = time.perf_counter()
        blocked = self._rope.blocked_s - self._blocked_before
        channel = self._rope.channel
        clock = time.time() + (channel.clock_offset_s if channel is not None else 0.0)
        compute = now - self._began - self._data - blocked
        arrived = clock - (now - self._arrived)
        self.timing.add(done.number, data=self._data, compute=compute, blocked=blocked, arrived=arrived)
        if channel is None:
            return
        record = {
            "step": done.number + 1,
            "epoch": done.epoch,
            "loss": done.loss,
            "samples": done.samples,
            "ms": round((now - self._began) * 1e3, 4),
            "at": round(clock, 6),
        }
        self._recent.append(record)
        if self._rope.rank == 0:
            channel.post("step", record)
        if now - self._sent_at > SEND_EVERY_S:
            self._sent_at = now
            self.send_timing()

    def send_timing(self) -> None:
        """Send what has gathered."""
        record = self.timing.drain()
        if record is not None and self._rope.channel is not None:
            self._rope.channel.post("times", record)

    def repeat(self) -> None:
        """The members changed: whoever speaks for all now says what the hub has not on record."""
        channel = self._rope.channel
        if channel is not None and self._rope.rank == 0:
            for record in self._recent:
                if record["step"] > channel.recorded:
                    channel.post("step", record)
