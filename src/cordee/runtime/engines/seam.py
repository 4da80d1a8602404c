"""What the coordinator needs of whatever starts the processes of a run: a fork server, other hosts, another launcher.

An engine gets a queue when it is made, and puts notices into it from then on; see `runtime/notices.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from cordee.core.world import World
from cordee.group.messages import Seat


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

        Returns before they run. Each of them connects to the coordinator, or a notice says `NotStarted` or `Lose`.
        """

    def look(self) -> float | None:
        """Do what is due, such as ending stopped processes; called in every round of the coordinator's loop.

        Returns in how many seconds it wants to be called again, None if only a notice `Look` tells.
        """

    def wait(self, seconds: float) -> bool:
        """Wait, at most so long, until all processes have ended; whether they have."""

    def how_it_ended(self, worker: int) -> str | None:
        """How a process ended, in words; None if it has not, or the engine cannot know."""

    def end(self) -> None:
        """End all processes that are left."""

    def close(self) -> None:
        """End all processes that are left, and what the engine itself needed; a second call does nothing."""
