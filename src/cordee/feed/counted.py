"""How much came from which place: of one cache, and of all that this process reads."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Counters:
    """What came from where, so far. Whatever is counted is counted in `HERE` too, for the record of a run."""

    device_samples: int = 0
    """Samples that were gathered on a GPU."""
    memory_hits: int = 0
    memory_bytes: int = 0
    disk_hits: int = 0
    disk_bytes: int = 0
    disk_s: float = 0.0
    """Seconds of all threads together."""
    fetched: int = 0
    fetched_bytes: int = 0
    fetched_s: float = 0.0
    by_holder: dict[str, int] = field(default_factory=dict)
    """Bytes that each holder of a scattered store gave."""
    evicted: int = 0
    """From memory."""
    demoted: int = 0
    """Of those, how many were written to the disk then: the others were there, or not worth it."""
    damaged: int = 0
    """Blocks on the disk that were not whole, and were fetched again."""

    def count(self, *, holders: dict[str, int] | None = None, **more: float) -> None:
        """Add to these fields, and to bytes by holder; any thread may."""
        for counters in (self,) if self is HERE else (self, HERE):
            with _turn:
                for name, value in more.items():
                    setattr(counters, name, getattr(counters, name) + value)
                for holder, nbytes in (holders or {}).items():
                    counters.by_holder[holder] = counters.by_holder.get(holder, 0) + nbytes

    @property
    def reads(self) -> int:
        """Blocks that gathers asked for."""
        return self.memory_hits + self.disk_hits + self.fetched

    @property
    def hit_rate(self) -> float:
        """The part of the reads that needed no fetch."""
        return (self.memory_hits + self.disk_hits) / self.reads if self.reads else 0.0

    def to_dict(self) -> dict[str, Any]:
        """By name, with the rates."""
        with _turn:
            return {**asdict(self), "reads": self.reads, "hit_rate": self.hit_rate}


_turn = threading.Lock()
HERE = Counters()
"""Of this process, since its start: over all stores, caches and devices."""
