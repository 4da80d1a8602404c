"""What the coordinator needs of whatever starts the processes of a run: a fork server, other hosts, another launcher.

An engine gets a queue when it is made, and puts notices into it from then on: `(kind, worker, content)`.

| kind | content | when |
|---|---|---|
| `exited` | `status`: the exit code, or minus the signal | a process has ended |
| `stopped` | | a process was stopped (SIGSTOP, a debugger) for too long and was ended |
| `not_started` | `reason` | a process could not be started |
| `engine_gone` | | the engine itself has ended, and its processes with it; worker is -1 |
| `look` | | `look` is due; worker is -1 |
"""

from __future__ import annotations

import queue
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cordee.core.world import World

Notices = queue.SimpleQueue[tuple[str, int, dict[str, Any]]]


@dataclass(frozen=True)
class Seat:
    """A process to start: its number, which no other process of the run ever has, and its place among them."""

    worker: int
    world: World
    """`world.node` says on which host; the process gets the cores and the device of `world.local_rank` there."""
    joins: bool = False
    """Whether it comes in while others train, in the place of one that was lost."""


def seats(counts: Sequence[int]) -> list[Seat]:
    """The processes of a run that has so many on each host, numbered host by host."""
    places = [(node, local) for node, count in enumerate(counts) for local in range(count)]
    return [
        Seat(rank, World(rank, len(places), local, counts[node], node, len(counts), source="cordee"))
        for rank, (node, local) in enumerate(places)
    ]


class Engine(Protocol):
    """Starts and ends processes. All methods are called by one thread, the coordinator's."""

    def start(self, seats: Iterable[Seat]) -> None:
        """Start a process for each; at the beginning of a run, and at any time later.

        Returns before they run. Each of them connects to the coordinator, or a notice says `not_started` or `exited`.
        """

    def stop(self, workers: Iterable[int]) -> None:
        """End these processes at once, without a last word; a notice `exited` follows for those that had not ended."""

    def look(self) -> float | None:
        """Do what is due, such as ending stopped processes; called in every round of the coordinator's loop.

        Returns in how many seconds it wants to be called again, None if only a notice `look` tells.
        """

    def wait(self, seconds: float) -> bool:
        """Wait, at most so long, until all processes have ended; whether they have."""

    def exit_code(self, worker: int) -> int | None:
        """How a process ended (negative: by which signal); None if it has not, or the engine cannot know."""

    def close(self) -> None:
        """End all processes that are left, and what the engine itself needed; a second call does nothing."""
