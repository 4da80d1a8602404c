"""What a coordinator that is started anew begins with, and what follows from what its workers then tell it.

The coordinator keeps nothing that it could not lose. What it decides it says to its launcher before any worker hears of
it, as one value of this kind; the launcher starts the next coordinator with the last one. What workers had said, and
wait for, they say again: each of them knows its generation, and whether that is over.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from cordee.core.events import JobEvent, encode
from cordee.group.messages import Back, Break, Evicted, Go, Message, Welcome
from cordee.runtime.coordinator.holders import Servers
from cordee.runtime.coordinator.state import Hosts, Roster
from cordee.runtime.coordinator.tickets import Tickets

NO_LATE_HOST = "no host can enter this run: it is starting, or another launcher coordinates it"


@dataclass(frozen=True)
class Known:
    """A run as its coordinator knows it, but for what its workers tell any coordinator again."""

    roster: Roster
    hosts: Hosts
    term: int = 1
    """How many coordinators there were, with this one."""
    run: str = ""
    """What tells this start of the run from others."""
    claims: int = 0
    """How often hosts were parted into two halves."""
    home: int = 0
    """The host on which it is."""
    go: Go | None = None
    """The generation that was begun last."""
    servers: Servers = field(default_factory=Servers)
    persist: bool = False
    lost_servers: frozenset[int] = frozenset()
    settings: dict[str, str] = field(default_factory=dict)
    recorded: int = -1
    """The last step that is on record."""
    patience_s: float = 0.0
    """How long peers look for the next coordinator when they have lost this one; 0: there will be none."""
    job: JobEvent | None = None
    """What is trained, for a record that begins on another host."""
    late: Welcome | Evicted = field(default_factory=lambda: Evicted(NO_LATE_HOST))
    """The answer to a host that enters the run once it has begun."""
    ended: bool = False
    """Whether all workers have been told that they may leave, or that they must."""

    def next_term(self, recorded: int) -> Known:
        """What the next coordinator begins with: no worker has come back to it yet."""
        roster = replace(self.roster, ready={}, admitting=frozenset(), finished=frozenset(), waiting=frozenset())
        hosts = self.hosts if self.hosts.order else replace(self.hosts, workers={0: self.hosts.workers[0]}, doors={})
        return replace(self, roster=roster, hosts=hosts, term=self.term + 1, recorded=max(self.recorded, recorded))

    @property
    def here(self) -> tuple[int, ...]:
        """The hosts that have not left, in their order."""
        return tuple(host for host in self.hosts.order if host not in self.hosts.gone)

    @property
    def heirs(self) -> tuple[int, ...]:
        """The hosts whose launchers coordinate when this one cannot any more, the first of them first.

        None that entered the run later: it has no door.
        """
        return tuple(host for host in self.here if host != self.home and host in self.hosts.doors)

    def doors(self) -> list[tuple[str, int]]:
        """Where those listen; not the first host, which is not there any more when another one coordinates."""
        return [self.hosts.doors[host] for host in self.heirs]

    def packed(self) -> str:
        """As text."""
        return encode(self).decode()


@dataclass(frozen=True)
class Successor:
    """What a coordinator is started with that may be ended and started anew."""

    known: Known
    listener: socket.socket
    """Of its launcher: it stays open when the coordinator ends, and peers wait there for the next one."""
    notices: Any
    """A queue for its launcher, to which notices are put with what is known then, if that has changed."""
    folder: str = ""
    """The run's, on this host."""
    standing: Message | None = None
    """What every peer is told, whenever it connects."""
    tickets: Tickets | None = None


def first_known(expected: int, nodes: int, settings: Mapping[str, str]) -> Known:
    """At the start of a run."""
    return Known(Roster(expected), Hosts(nodes, {0: expected}), settings=dict(settings))


def unpack_known(text: str) -> Known:
    """From text; `ValueError` for what is none."""
    return msgspec.json.decode(text, type=Known)


def returned(roster: Roster, go: Go | None, worker: int, back: Back) -> tuple[Roster, Go | None, list[Message]]:
    """A worker has come back: what is known with what it says, and what it has to be told.

    It may know more than we do (a generation that was begun by a coordinator whose last words we did not hear), or
    less (a generation of which that coordinator told only some of its members, a loss).
    """
    theirs = back.go
    if theirs is not None and (go is None or theirs.generation > go.generation):
        go = theirs
        gone = {number for number, _ in roster.lost}
        roster = replace(
            roster,
            generation=go.generation,
            alive=frozenset(go.members) - gone,
            invited=roster.invited - set(go.members),
            leaving=roster.leaving - set(go.left),
            departed=roster.departed | set(go.left),
            formed=gone.isdisjoint(go.members),
            ready={},
            admitting=frozenset(),
            finished=frozenset(),
        )
    if go is not None and worker in roster.departed:  # it may not have heard that it may leave
        return roster, go, [msgspec.structs.replace(go, left=(worker,))]
    if roster.has_lost(worker):
        return roster, go, [Evicted("it was evicted: the others continued without it")]
    if worker in roster.invited or go is None:
        return roster.join(worker), go, []
    if worker not in go.members:
        return (
            roster,
            go,
            [
                Evicted(
                    f"it belongs to generation {theirs.generation if theirs else 0} of the run, and "
                    f"the others are in generation {go.generation} without it"
                )
            ],
        )
    words: list[Message] = []
    broken = back.broken
    if theirs is None or theirs.generation < go.generation:
        words.append(go)
    elif broken >= go.generation and roster.formed:
        for other in back.lost:
            roster = (
                roster.lose(other, "its loss was seen by the coordinator before") if other in roster.alive else roster
            )
        roster = roster.tear()
    if not roster.formed and broken < go.generation:
        lost = [number for number, _ in roster.lost if number in go.members and number not in back.lost]
        words += [Break(go.generation, one) for one in lost] or [Break(go.generation, None)]
    return roster, go, words


def rebuild(known: Known, reports: Iterable[tuple[int, Back]]) -> Roster:
    """The workers of a run by what is known and what those that came back say, in any order."""
    roster, go = known.roster, known.go
    for worker, back in reports:
        roster, go, _ = returned(roster, go, worker, back)
    return roster
