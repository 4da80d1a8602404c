"""Where samples came from, as an event and added up; see `events.py`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import structs

from cordee.core.event import Count, Event, Number


class FeedEvent(Event):
    """Where the samples of a worker came from, if a cache or a GPU is between; after each epoch and at the end."""

    worker: Count
    """whose samples these are; all numbers are since its start, over all sets"""
    device_samples: Count = 0
    """samples that were gathered on the GPU, which holds the set"""
    memory_hits: Count = 0
    """blocks of a cache that were in memory when they were asked for"""
    memory_bytes: Count = 0
    """of these"""
    disk_hits: Count = 0
    """blocks that came from the disk's level of the cache"""
    disk_bytes: Count = 0
    """of these"""
    disk_s: Number = 0.0
    """seconds that reading them took, added up over threads"""
    fetched: Count = 0
    """blocks that came from afar"""
    fetched_bytes: Count = 0
    """bytes that came from afar, also those of a store that was fetched as a whole"""
    fetched_s: Number = 0.0
    """seconds that this took, added up over threads"""
    by_holder: dict[str, Count] = {}
    """bytes that each host gave, where other hosts hold the store"""


def add_up(counted: Iterable[FeedEvent]) -> dict[str, Any]:
    """The numbers of several workers together, and the part of the blocks that needed no fetch; empty if none."""
    total: dict[str, Any] = {}
    for event in counted:
        for name, value in structs.asdict(event).items():
            if name == "by_holder":
                holders = total.setdefault(name, {})
                for holder, nbytes in value.items():
                    holders[holder] = holders.get(holder, 0) + nbytes
            elif name not in ("time", "worker"):
                total[name] = round(total.get(name, 0) + value, 3)
    if total:
        near = total["memory_hits"] + total["disk_hits"]
        total["hit_rate"] = round(near / (near + total["fetched"]), 4) if near else 0.0
    return total
