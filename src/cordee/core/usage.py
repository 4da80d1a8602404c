"""What a run has used, put together from what its workers say of themselves."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from cordee.core.events import UsageEvent

BYTES = ("bytes_sent", "bytes_near", "bytes_plain", "bytes_received")
"""What is counted in bytes; see the event `usage`."""


@dataclass
class Resources:
    """Processor time, memory, bytes sent and worker-hours of one start of a run."""

    _came: dict[int, float] = field(default_factory=dict)
    _left: dict[int, float] = field(default_factory=dict)
    _last: dict[int, UsageEvent] = field(default_factory=dict)
    _peak_mb: dict[int, float] = field(default_factory=dict)

    def came(self, worker: int) -> None:
        """A worker has introduced itself."""
        self._came.setdefault(worker, time.monotonic())

    def used(self, usage: UsageEvent) -> None:
        """What it has used until now; see the event `usage`."""
        self._last[usage.worker] = usage
        self._peak_mb[usage.worker] = max(self._peak_mb.get(usage.worker, 0.0), usage.memory_mb)

    def left(self, worker: int) -> None:
        """It was lost."""
        self._left.setdefault(worker, time.monotonic())

    def summary(self) -> dict[str, Any]:
        """For `result.json`: sums over all workers; memory is the largest that one of them was seen with."""
        now = time.monotonic()
        seconds = sum(self._left.get(worker, now) - came for worker, came in self._came.items())
        return {
            "cpu_s": round(sum(one.cpu_s for one in self._last.values()), 3),
            "memory_mb": max(self._peak_mb.values(), default=0.0),
            "gpu_mb": max((one.gpu_mb for one in self._last.values()), default=0.0),
            **{name: sum(getattr(one, name) for one in self._last.values()) for name in BYTES},
            "worker_hours": round(seconds / 3600, 6),
        }
