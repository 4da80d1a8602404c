"""What a worker keeps of the steps that were committed: which samples, what loss, where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cordee.feed.digest import chain, delivered
from cordee.feed.order import Order

LIMBS = 8
"""A digest travels as eight bytes, each a small whole number, so that a float32 sum over 65,536 replicas is exact."""


def to_limbs(digest: int) -> list[float]:
    """A 64-bit digest as numbers that add up exactly."""
    return [float(byte) for byte in digest.to_bytes(LIMBS, "little")]


def from_limbs(limbs: Sequence[float]) -> int:
    """The sum of digests, modulo 2**64, from the sums of their limbs."""
    return sum(int(limb) << (8 * place) for place, limb in enumerate(limbs)) % 2**64


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
            "order_sha256": self.order_sha256, "samples": self.samples, "lost": self.lost, "repeated": self.repeated
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
