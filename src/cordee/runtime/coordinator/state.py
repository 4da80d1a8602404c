"""What the coordinator knows of a run, as frozen values: its workers, and the hosts that they are on."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace


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

    def join(self, worker: int) -> Roster:
        """A worker connected for the first time."""
        return replace(self, alive=self.alive | {worker})

    def lose(self, worker: int, reason: str) -> Roster:
        """A worker died, perhaps before it joined, or fell silent; those that had finished must regroup too."""
        if self.has_lost(worker):
            return self
        return replace(
            self,
            alive=self.alive - {worker},
            lost=(*self.lost, (worker, reason)),
            ready={who: at for who, at in self.ready.items() if who != worker},
            finished=frozenset(),
            formed=False,
        )

    def has_lost(self, worker: int) -> bool:
        """Whether this worker is gone for good."""
        return any(gone == worker for gone, _ in self.lost)

    def tear(self) -> Roster:
        """A collective failed though all members are alive: the same members form a new generation."""
        return replace(self, finished=frozenset(), formed=False)

    def report(self, worker: int, committed: int) -> Roster:
        """A worker waits for the next generation, with `committed` agreements behind it."""
        if worker not in self.alive:
            return self
        return replace(self, ready={**self.ready, worker: committed})

    def finish(self, worker: int) -> Roster:
        """A worker has nothing left to agree on and waits for the others to say the same."""
        return replace(self, finished=self.finished | ({worker} & self.alive))


@dataclass(frozen=True)
class Hosts:
    """The hosts of a run, numbered as they came; number 0 is the coordinator's own."""

    nodes: int
    """So many are to come."""
    workers: dict[int, int]
    """Host → how many workers it has."""
    first: dict[int, int] = field(default_factory=dict)
    """Host → the id of its first worker, once all hosts have come."""

    def free(self) -> int:
        """The number of the next host that comes."""
        return next(number for number in itertools.count(1) if number not in self.workers)

    def come(self, host: int, workers: int) -> Hosts:
        """A host came."""
        return replace(self, workers={**self.workers, host: workers})

    def leave(self, host: int) -> Hosts:
        """A host left before the run began: another one may take its place."""
        return replace(self, workers={one: count for one, count in self.workers.items() if one != host})

    def numbered(self, names: dict[int, str]) -> Hosts:
        """Number the workers through, host by host, by the `names` of the hosts that follow the coordinator's."""
        first, total = {}, 0
        for host in sorted(self.workers, key=lambda host: (names.get(host, ""), host)):
            first[host] = total
            total += self.workers[host]
        return replace(self, first=first)

    @property
    def order(self) -> tuple[int, ...]:
        """The hosts, by the ids of their workers; a host's place in here is its node number."""
        return tuple(self.first)

    def workers_of(self, host: int) -> range:
        """The ids of a host's workers."""
        return range(self.first[host], self.first[host] + self.workers[host])
