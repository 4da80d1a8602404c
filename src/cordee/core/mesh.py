"""Who is where in a generation: replica × stage × shard × slice → worker. A value, made anew when members change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple


class Shape(NamedTuple):
    """Over how many workers a replica lies, along each axis."""

    stages: int = 1
    shards: int = 1
    """Groups of workers that each compute a share of the batch, and together hold the state of one replica."""
    slices: int = 1

    @property
    def size(self) -> int:
        """How many workers hold one replica together."""
        return self.stages * self.shards * self.slices


WHOLE = Shape()
"""Of a replica on one worker."""


@dataclass(frozen=True)
class Mesh:
    """Replicas of one shape, and workers that are left over."""

    replicas: tuple[tuple[tuple[int, ...], ...], ...]
    """`replicas[replica][stage][place]` is a worker's number; a stage has the slices of each shard side by side."""
    spares: tuple[int, ...] = ()
    shards: int = 1
    first: tuple[int, ...] = ()
    """The `leaders` before replicas were lost; empty: none was."""

    @property
    def leaders(self) -> tuple[int, ...]:
        """The first worker of each shard of each replica, after which its share of a batch is reckoned."""
        return tuple(one for stages in self.replicas for one in stages[0][:: self._slices(stages[0])])

    @property
    def numbers(self) -> tuple[int, ...]:
        """For each share of a batch the number by which proportions name it, which it keeps when others are lost.

        That of the worker which computes it; where several do so together, its place among the first replicas.
        """
        leaders = self.leaders
        if len(leaders) == sum(map(len, chain.from_iterable(self.replicas))):
            return leaders
        return tuple(map((self.first or leaders).index, leaders))

    def _slices(self, places: tuple[int, ...]) -> int:
        return len(places) // self.shards

    def inside(self, worker: int) -> tuple[int, ...]:
        """All workers of this one's replica, stage by stage; a spare, or one that is not a member, is alone."""
        found = (tuple(chain.from_iterable(stages)) for stages in self.replicas)
        return next((one for one in found if worker in one), (worker,))

    def along(self, axis: str, worker: int) -> tuple[int, ...]:
        """The workers that differ from this one in `axis` alone, itself included, in the order of that axis.

        `axis` is replica, stage, shard or slice; or share, over which a batch is cut: replica and shard together. A
        spare, or one that is not a member, is alone.
        """
        for stages in self.replicas:
            for stage, places in enumerate(stages):
                if worker in places:
                    place, slices = places.index(worker), self._slices(places)
                    first, column = place - place % slices, slice(place % slices, None, slices)
                    return {
                        "replica": tuple(other[stage][place] for other in self.replicas),
                        "stage": tuple(one[place] for one in stages),
                        "shard": places[column],
                        "slice": places[first : first + slices],
                        "share": tuple(one for other in self.replicas for one in other[stage][column]),
                    }[axis]
        return (worker,)

    def among(self, members: Iterable[int]) -> Mesh:
        """What is left of it among these: replicas of which all workers are there; those of others are spares."""
        left = set(members)
        whole = tuple(one for one in self.replicas if left.issuperset(chain.from_iterable(one)))
        used = set(chain.from_iterable(chain.from_iterable(whole)))
        return Mesh(whole, tuple(sorted(left - used)), self.shards, self.first or self.leaders)


def lay_out(
    members: Sequence[int], hosts: Mapping[int, str], *, stages: int = 1, shards: int = 1, slices: int = 1
) -> Mesh:
    """As many whole replicas as the members are enough for; what communicates most lies within one host if it can.

    `hosts` says on which host a member is. Slices of a stage exchange activations in every layer, so they are put
    together first; then shards, which exchange parameters; then the stages of a replica. Over several hosts goes only
    what no single host has room for.
    """
    of_host: dict[str, list[tuple[int, ...]]] = {}
    for member in members:
        of_host.setdefault(hosts[member], []).append((member,))
    by_slice, rest = _put_together(of_host, slices)
    by_shard, more = _put_together(by_slice, shards)
    by_stage, parts = _put_together(by_shard, stages)
    place = {member: number for number, member in enumerate(members)}
    replicas = sorted(chain.from_iterable(by_stage.values()), key=lambda replica: min(map(place.__getitem__, replica)))
    each = shards * slices
    cut = [tuple(replica[start : start + each] for start in range(0, len(replica), each)) for replica in replicas]
    return Mesh(tuple(cut), tuple(sorted(chain(rest, more, parts), key=place.__getitem__)), shards)


def _put_together(
    of_host: Mapping[str, Sequence[tuple[int, ...]]], count: int
) -> tuple[dict[str, list[tuple[int, ...]]], Iterable[int]]:
    """Join `count` units of one host to a larger one, and what is left of several hosts; the members that remain."""
    joined: dict[str, list[tuple[int, ...]]] = {}
    left: list[tuple[str, tuple[int, ...]]] = []
    for host, units in of_host.items():
        whole = len(units) - len(units) % count
        joined[host] = [tuple(chain.from_iterable(units[at : at + count])) for at in range(0, whole, count)]
        left += [(host, unit) for unit in units[whole:]]
    whole = len(left) - len(left) % count
    for at in range(0, whole, count):
        joined[left[at][0]].append(tuple(chain.from_iterable(unit for _, unit in left[at : at + count])))
    return joined, chain.from_iterable(unit for _, unit in left[whole:])
