"""What a cache may take, and how it is used: a setting of the user's."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from cordee.core.errors import DataError
from cordee.feed.cache.policy import POLICIES

_UNITS = {"": 1, "B": 1, **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)}}
_UNITS |= {f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", 1)}
WHOLE = "shard"
"""The size of blocks where each is a whole shard."""


@dataclass(frozen=True)
class Cache:
    """Where rows of a far store are kept on the way to the batches: levels, each with a budget.

    Sizes are bytes, or texts such as "512MB" and "2GiB". Each worker has `memory` of its own; `disk` is for all workers
    of a host together.
    """

    memory: int | str = "1GB"
    """Host memory for blocks, with those that are read ahead."""
    disk: int | str = "10GB"
    """Space in `folder`; 0: none."""
    folder: str | os.PathLike[str] | None = None
    """On a local disk of each host; default: `blocks` in `$CORDEE_CACHE`, else in ~/.cache/cordee."""
    block: int | str = "1MB"
    """How much is fetched at once: rows of about so many bytes, or "shard" for whole shards, whose checksum is checked
    against the store's own."""
    ahead: int | str | None = None
    """The part of `memory` for what is fetched before it is asked for; default: a quarter, 0: nothing is."""
    connections: int = 4
    """How many blocks are fetched at a time."""
    device: int | str | None = None
    """GPU memory for a set that fits in there as a whole: it is fetched before the first step. Default: none."""
    policy: str = "belady"
    """What is evicted: "belady", what is needed last; "lru", what was used longest ago."""
    deadline_s: float = 300.0
    """How long a block may take, with all attempts to fetch it."""

    def __post_init__(self) -> None:
        """Refuse what has no meaning; sizes become bytes."""
        for name in ("memory", "disk"):
            object.__setattr__(self, name, size_of(name, getattr(self, name)))
        for name in ("ahead", "device"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, size_of(name, getattr(self, name)))
        if self.block != WHOLE:
            object.__setattr__(self, "block", max(1, size_of("block", self.block)))
        if self.policy not in POLICIES:
            raise DataError(f"policy={self.policy!r} is not known: choose one of {', '.join(POLICIES)}")
        if isinstance(self.connections, bool) or not isinstance(self.connections, int) or self.connections < 1:
            raise DataError(f"connections={self.connections!r}: a whole number of at least 1 is needed")
        if not self.deadline_s > 0:
            raise DataError(f"deadline_s={self.deadline_s!r}: a number of seconds above 0 is needed")
        if self.ahead_bytes > self.memory_bytes:
            raise DataError(f"ahead={self.ahead} is more than memory={self.memory}, of which it is a part")

    @property
    def memory_bytes(self) -> int:
        """Of host memory."""
        assert isinstance(self.memory, int)
        return self.memory

    @property
    def disk_bytes(self) -> int:
        """Of the folder."""
        assert isinstance(self.disk, int)
        return self.disk

    @property
    def ahead_bytes(self) -> int:
        """Of host memory, for what is read ahead."""
        assert not isinstance(self.ahead, str)
        return self.memory_bytes // 4 if self.ahead is None else self.ahead

    @property
    def device_bytes(self) -> int:
        """Of a GPU's memory."""
        return self.device if isinstance(self.device, int) else 0

    @property
    def place(self) -> Path:
        """The folder of the disk's level."""
        if self.folder is not None:
            return Path(self.folder).expanduser()
        if home := os.environ.get("CORDEE_CACHE"):
            return Path(home).expanduser().absolute() / "blocks"
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cordee" / "blocks"


def size_of(name: str, given: object) -> int:
    """Bytes meant by a number or a text such as "2GB"; `DataError` naming the setting."""
    if isinstance(given, int | float) and not isinstance(given, bool) and given >= 0 and math.isfinite(given):
        return int(given)
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([A-Za-z]*)\s*", given) if isinstance(given, str) else None
    if found is None or found[2].upper() not in _UNITS:
        raise DataError(f"{name}={given!r}: expected a number of bytes, or a text such as '512MB' or '2GiB'")
    return int(float(found[1]) * _UNITS[found[2].upper()])
