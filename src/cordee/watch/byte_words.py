"""The bytes of a run in words: before and after compression, where they went, and what computing hid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cordee.core.words import amount, plural
from cordee.watch.summary import Summary, Worker
from cordee.watch.words import duration, milliseconds, number, percent, worker_columns


def byte_columns(summary: Summary) -> list[tuple[str, str, Callable[[Worker], str]]]:
    """The table of bytes, as `worker_columns`: before and after compression, and where they went."""
    workers, given = summary.workers, worker_columns(summary)
    columns: dict[str, Callable[[Worker], str]] = {
        "sent per step": lambda one: amount(one.per_step("sent")),
        "without a codec": lambda one: amount(one.per_step("plain")),
        "times smaller": lambda one: number(_smaller([one])),
        "sent in all": lambda one: amount(one.bytes_sent),
        "left its host": lambda one: amount(one.bytes_sent - one.bytes_near),
        "from servers": lambda one: amount(one.bytes_received),
        "hidden per step": lambda one: milliseconds(1e3 * one.per_step("hidden")),
        "not hidden": lambda one: milliseconds(1e3 * one.time_s["communication"] / max(1, one.steps)),
    }
    if not compressed(workers):
        del columns["without a codec"], columns["times smaller"]
    if not any(one.bytes_received for one in workers):
        del columns["from servers"]
    if not hides(workers):
        del columns["hidden per step"], columns["not hidden"]
    named = [column for column in given if column[0] in ("worker", "start")]
    return [*named, *((name, "number", text) for name, text in columns.items())]


def compressed(workers: Sequence[Worker]) -> bool:
    """Whether a codec made what was sent in steps smaller, or larger."""
    return any(one.costs["plain"] != one.costs["sent"] for one in workers)


def hides(workers: Sequence[Worker]) -> bool:
    """Whether computing hid some communication."""
    return any(one.costs["hidden"] for one in workers)


def _smaller(workers: Sequence[Worker]) -> float:
    sent, plain = (sum(one.costs[name] for one in workers) for name in ("sent", "plain"))
    return plain / sent if sent else 1.0


def traffic(summary: Summary) -> str:
    """How much is sent in a step, how much smaller that is by a codec, and what is hidden; empty if nothing is sent."""
    senders = [one for one in summary.workers if one.costs["sent"]]
    if not senders:
        return ""
    steps = sum(one.steps for one in senders)
    sent, plain = (amount(sum(one.costs[name] for one in senders) / steps) for name in ("sent", "plain"))
    ratio = _smaller(senders)
    less = f"{number(ratio)} times less than the" if ratio > 1 else "instead of"
    smaller = f", {less} {plain} without a codec" if compressed(senders) else ""
    whole, near = (sum(getattr(one, name) for one in senders) for name in ("bytes_sent", "bytes_near"))
    far = {0: "Nothing", whole: "All"}.get(whole - near) or percent((whole - near) / whole)
    where = f" {far} of it leaves the host." if whole else ""
    hidden = sum(one.costs["hidden"] for one in senders)
    shown = sum(one.time_s["communication"] for one in senders)
    part = percent(hidden / (hidden + shown)) if hidden else "nothing"
    return f"A worker sends {sent} per step{smaller}.{where} Computing hides {part} of the communication."


def _blocks(one: Mapping[str, Any], hits: str, nbytes: str) -> str:
    counted = f"{plural(one[hits], 'block')}, " if one[hits] else ""
    return f"{counted}{amount(one[nbytes])}"


_FEED: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "from the GPU": ("device_samples", lambda one: plural(one["device_samples"], "sample")),
    "from memory": ("memory_bytes", lambda one: _blocks(one, "memory_hits", "memory_bytes")),
    "from disk": ("disk_bytes", lambda one: _blocks(one, "disk_hits", "disk_bytes")),
    "reading took": ("disk_s", lambda one: duration(one["disk_s"])),
    "from afar": ("fetched_bytes", lambda one: _blocks(one, "fetched", "fetched_bytes")),
    "fetching took": ("fetched_s", lambda one: duration(one["fetched_s"])),
}
"""By column: which number it needs, and its text."""


def feed_table(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Where samples came from: the columns that say something, and a row per worker, and of all if there are several.

    Seconds are those of all threads together.
    """
    carried = summary.traffic
    columns = {name: text for name, (needed, text) in _FEED.items() if carried.fed.get(needed)}
    counted = {**carried.feed, **({"all": carried.fed} if len(carried.feed) > 1 else {})}
    return ["worker", *columns], [[who, *(text(one) for text in columns.values())] for who, one in counted.items()]


def fed(summary: Summary) -> str:
    """How often a cache hit, and which hosts gave how much; empty if nothing came from afar or from a cache."""
    one, told = summary.traffic.fed, []
    if one and one["memory_hits"] + one["disk_hits"] + one["fetched"]:
        told.append(f"Caches had {percent(one['hit_rate'])} of the blocks that were asked for.")
    if one and one["by_holder"]:
        given = ", ".join(f"{holder} {amount(nbytes)}" for holder, nbytes in sorted(one["by_holder"].items()))
        told.append(f"From afar came, by host: {given}.")
    return " ".join(told)
