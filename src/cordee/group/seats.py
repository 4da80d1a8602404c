"""The processes of a run as values: which number each has, where it is, and what servers hold."""

from __future__ import annotations

import msgspec

from cordee.core.world import World

FIRST_SERVER = 1_000_000
"""Numbers of processes from here on are parameter servers'; workers have those below."""


def name_of(number: int) -> str:
    """What a process of a run is called."""
    return f"server {number - FIRST_SERVER}" if number >= FIRST_SERVER else f"worker {number}"


class Place(msgspec.Struct, frozen=True):
    """Where a parameter server listens."""

    number: int
    host: str
    interface: str
    port: int
    pid: int = 0

    @property
    def name(self) -> str:
        """For messages."""
        return f"{name_of(self.number)} on {self.host}"


class Holding(msgspec.Struct, frozen=True):
    """Which servers hold one shard of the parameters."""

    first: Place | None = None
    """The one that workers talk to."""
    backup: Place | None = None
    """It has all that the first has acknowledged."""
    filling: Place | None = None
    """It becomes the backup when the first has given it all."""


class Seat(msgspec.Struct, frozen=True):
    """A process to start: its number, which no other process of the run ever has, and its place among them."""

    worker: int
    world: World
    """`world.node` says on which host; the process gets the cores and the device of `world.local_rank` there."""
    joins: bool = False
    """Whether it comes in while others train."""

    @property
    def serves(self) -> bool:
        """Whether it is a parameter server."""
        return self.worker >= FIRST_SERVER
