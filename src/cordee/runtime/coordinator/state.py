"""What the coordinator knows of a run, as frozen values: its workers, and the hosts that they are on."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from cordee.core.world import World
from cordee.group.messages import Place, Seat
from cordee.runtime.engines.seam import seats


@dataclass(frozen=True)
class Roster:
    """The workers of a run: who is alive, and how far those who are ready for the next generation have come."""

    expected: int
    generation: int = 0
    alive: frozenset[int] = frozenset()
    lost: tuple[tuple[int, str], ...] = ()
    ready: dict[int, int] = field(default_factory=dict)
    """Worker id → agreements committed, for those who wait for the next generation."""
    finished: frozenset[int] = frozenset()
    formed: bool = False
    """Whether the current generation is whole: no member of it was lost since it was formed."""
    invited: frozenset[int] = frozenset()
    """Workers that were started later, to come in, and are not members yet."""
    waiting: frozenset[int] = frozenset()
    """Those of them that wait to be let in."""
    admitting: frozenset[int] = frozenset()
    """Those of the ready that would let others in: they are between two steps."""
    leaving: frozenset[int] = frozenset()
    """Members that were asked to leave, and do so between two steps."""
    departed: frozenset[int] = frozenset()
    """Workers that have left: nothing of theirs was lost."""

    def invite(self, worker: int) -> Roster:
        """A worker is started that shall come in later."""
        return replace(self, invited=self.invited | {worker})

    def ask_to_leave(self, worker: int) -> Roster:
        """A member shall leave between two steps."""
        return replace(self, leaving=self.leaving | ({worker} & self.alive))

    def join(self, worker: int) -> Roster:
        """A worker connected for the first time; one that was invited is no member yet."""
        return self if worker in self.invited else replace(self, alive=self.alive | {worker})

    def lose(self, worker: int, reason: str) -> Roster:
        """A worker died, perhaps before it joined, or fell silent; those that had finished must regroup too."""
        if self.has_lost(worker):
            return self
        lost = (*self.lost, (worker, reason))
        if worker in self.invited:
            return replace(self, lost=lost, invited=self.invited - {worker}, waiting=self.waiting - {worker})
        return replace(
            self,
            alive=self.alive - {worker},
            lost=lost,
            ready={who: at for who, at in self.ready.items() if who != worker},
            admitting=self.admitting - {worker},
            leaving=self.leaving - {worker},
            finished=frozenset(),
            formed=False,
        )

    def has_lost(self, worker: int) -> bool:
        """Whether this worker is gone for good."""
        return worker in self.departed or any(gone == worker for gone, _ in self.lost)

    def tear(self) -> Roster:
        """A collective failed though all members are alive: the same members form a new generation."""
        return replace(self, finished=frozenset(), formed=False)

    def report(self, worker: int, committed: int, *, admits: bool = False) -> Roster:
        """A worker waits for the next generation, with `committed` agreements behind it."""
        if worker in self.invited:
            return replace(self, waiting=self.waiting | {worker})
        if worker not in self.alive:
            return self
        admitting = self.admitting | {worker} if admits else self.admitting - {worker}
        return replace(self, ready={**self.ready, worker: committed}, admitting=admitting)

    def finish(self, worker: int) -> Roster:
        """A worker has nothing left to agree on and waits for the others to say the same."""
        return replace(self, finished=self.finished | ({worker} & self.alive))


@dataclass(frozen=True)
class Places:
    """Which worker has which place in a run, and how soon places were lost again after they were filled."""

    seats: dict[int, Seat] = field(default_factory=dict)
    """Worker → its place; of those that were lost too."""
    replaces: dict[int, int] = field(default_factory=dict)
    """Worker → the one whose place it was started for; not those that came besides."""
    since: dict[int, int] = field(default_factory=dict)
    """Worker → steps of the run that were done when it came in."""
    here: frozenset[int] = frozenset()
    """Workers that are there or about to come, but for those that are about to leave."""
    soon: dict[int, int] = field(default_factory=dict)
    """Place (its rank) → how many workers in a row were lost there soon after they had come."""
    home: int = 0
    """The node number of the host that coordinates."""

    @classmethod
    def of(cls, seats: Iterable[Seat]) -> Places:
        """At the start of a run."""
        there = {seat.worker: seat for seat in seats}
        return cls(there, here=frozenset(there))

    @classmethod
    def found(cls, hosts: Hosts, roster: Roster, node: int, steps: int) -> Places:
        """By a host that takes over after so many steps; it is the `node`."""
        there = {seat.worker: seat for seat in (*seats(hosts.began), *hosts.joined)}
        here = ((roster.alive | roster.invited) - roster.leaving) & there.keys()
        since = {seat.worker: steps for seat in hosts.joined if seat.worker in roster.alive}
        return cls(there, since=since, here=frozenset(here), home=node)

    @property
    def began(self) -> list[int]:
        """The workers that began the run."""
        return [worker for worker, seat in self.seats.items() if not seat.joins]

    def joins(self, worker: int) -> bool:
        """Whether this worker was started while others trained."""
        return worker in self.seats and self.seats[worker].joins

    def without(self, worker: int) -> Places:
        """This worker is gone, or about to leave."""
        return replace(self, here=self.here - {worker})

    def came(self, workers: Iterable[int], steps: int) -> Places:
        """These came in after so many steps."""
        return replace(self, since={**self.since, **dict.fromkeys(workers, steps)})

    def fill(self, worker: int, soon: int) -> tuple[Places, Seat]:
        """A new worker, with a number that none had before, gets the place of this one."""
        place = self.seats[worker].world
        places, seat = self.seat(place)
        replaces, often = {**self.replaces, seat.worker: worker}, {**self.soon, place.rank: soon}
        return replace(places, replaces=replaces, soon=often), seat

    def seat(self, place: World) -> tuple[Places, Seat]:
        """A new worker, with a number that none had before, at a place where others may be too."""
        seat = Seat(max(max(self.seats) + 1, place.size), place, joins=True)
        return replace(self, seats={**self.seats, seat.worker: seat}, here=self.here | {seat.worker}), seat


@dataclass(frozen=True)
class Hosts:
    """The hosts of a run, numbered as they came; number 0 is that of the first coordinator."""

    nodes: int
    """So many are to come."""
    workers: dict[int, int]
    """Host → how many workers it has."""
    order: tuple[int, ...] = ()
    """The hosts, by the ids of their workers, once all have come; a host's place in here is its node number."""
    places: dict[int, int] = field(default_factory=dict)
    """Worker → its host."""
    names: dict[int, str] = field(default_factory=dict)
    """What each is called."""
    doors: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Where the launcher of each of the others listens: there it coordinates if it has to."""
    keepers: dict[int, Place] = field(default_factory=dict)
    """Host → where its launcher takes copies of the state."""
    gone: frozenset[int] = frozenset()
    """Hosts that were lost in the run."""
    joined: tuple[Seat, ...] = ()
    """Where workers were started later."""

    def free(self) -> int:
        """The number of the next host that comes."""
        return next(number for number in itertools.count(1) if number not in self.workers)

    def come(self, host: int, workers: int, keeper: Place | None = None, door: tuple[str, int] = ("", 0)) -> Hosts:
        """A host came; its launcher listens at the `door`, and for copies of the state at another place, if at any.

        Without a door it never coordinates.
        """
        keepers = self.keepers if keeper is None else {**self.keepers, host: keeper}
        doors = {**self.doors, host: door} if door[0] else self.doors
        return replace(self, workers={**self.workers, host: workers}, keepers=keepers, doors=doors)

    def lose(self, host: int) -> Hosts:
        """A host was lost in the run."""
        return replace(self, gone=self.gone | {host})

    @property
    def here(self) -> frozenset[int]:
        """The node numbers of the hosts that are here."""
        return frozenset(node for node, host in enumerate(self.order or (0,)) if host not in self.gone)

    def keeper_after(self, node: int, own: Place | None) -> Place | None:
        """Where copies of the host with this node number go: to the next one; `own`: the coordinator's."""
        after = (node + 1) % max(1, len(self.order))
        return None if after == node else self.keepers.get(self.order[after], own if after == 0 else None)

    def leave(self, host: int) -> Hosts:
        """A host left before the run began: another one may take its place."""
        return replace(self, workers={one: count for one, count in self.workers.items() if one != host})

    def numbered(self, names: dict[int, str]) -> Hosts:
        """Number the workers through, host by host, by the `names` of the hosts that follow the coordinator's."""
        order = tuple(sorted(self.workers, key=lambda host: (names.get(host, ""), host)))
        hosts = [host for host in order for _ in range(self.workers[host])]
        names = {host: names.get(host, "") for host in order}
        return replace(self, order=order, places=dict(enumerate(hosts)), names=names)

    def grown(self, host: int, workers: int, name: str) -> Hosts:
        """A host enters the run that has begun: it is the last in the order, and never coordinates."""
        workers_of, order = {**self.workers, host: workers}, (*self.order, host)
        return replace(self, nodes=self.nodes + 1, workers=workers_of, order=order, names={**self.names, host: name})

    @property
    def counts(self) -> list[int]:
        """How many workers each of them has."""
        return [self.workers[host] for host in self.order]

    @property
    def began(self) -> list[int]:
        """How many workers each of those has that were there from the beginning."""
        return [self.workers[host] for host in self.order if host == 0 or host in self.doors]

    def start_later(self, seat: Seat) -> Hosts:
        """A worker is started while others train."""
        if not self.order:
            return self
        places = {**self.places, seat.worker: self.order[seat.world.node]}
        return replace(self, places=places, joined=(*self.joined, seat))

    def nodes_of(self, workers: Iterable[int]) -> dict[int, int]:
        """The node numbers of these workers' hosts; empty where another launcher started them."""
        return {worker: self.order.index(self.places[worker]) for worker in workers if worker in self.places}

    def workers_of(self, host: int) -> list[int]:
        """The ids of a host's workers."""
        return [worker for worker, there in self.places.items() if there == host]
