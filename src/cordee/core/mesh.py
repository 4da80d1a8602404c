"""Who is where in a generation: replica × stage × slice → worker. A value, made anew when the members change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain


@dataclass(frozen=True)
class Mesh:
    """Replicas of one shape, each over `stages` × `slices` workers, and workers that are left over."""

    replicas: tuple[tuple[tuple[int, ...], ...], ...]
    """`replicas[replica][stage][slice]` is a worker's number."""
    spares: tuple[int, ...] = ()

    @property
    def leaders(self) -> tuple[int, ...]:
        """The first worker of each replica, after which its share is reckoned."""
        return tuple(stages[0][0] for stages in self.replicas)

    def inside(self, worker: int) -> tuple[int, ...]:
        """All workers of this one's replica, stage by stage; a spare, or one that is not a member, is alone."""
        found = (tuple(chain.from_iterable(stages)) for stages in self.replicas)
        return next((one for one in found if worker in one), (worker,))

    def along(self, axis: str, worker: int) -> tuple[int, ...]:
        """The workers that differ from this one in `axis` alone, itself included, in the order of that axis.

        `axis` is replica, stage or slice. A spare, or one that is not a member, is alone.
        """
        for stages in self.replicas:
            for stage, slices in enumerate(stages):
                if worker in slices:
                    place = slices.index(worker)
                    replicas = tuple(other[stage][place] for other in self.replicas)
                    return {"replica": replicas, "stage": tuple(one[place] for one in stages), "slice": slices}[axis]
        return (worker,)

    def among(self, members: Iterable[int]) -> Mesh:
        """What is left of it among these: replicas of which all workers are there; those of others are spares."""
        left = set(members)
        whole = tuple(one for one in self.replicas if left.issuperset(chain.from_iterable(one)))
        used = set(chain.from_iterable(chain.from_iterable(whole)))
        return Mesh(whole, tuple(sorted(left - used)))


def lay_out(members: Sequence[int], hosts: Mapping[int, str], *, stages: int = 1, slices: int = 1) -> Mesh:
    """As many whole replicas as the members are enough for; what communicates most lies within one host if it can.

    `hosts` says on which host a member is. Slices of a stage exchange activations in every layer, so they are put
    together first; then the stages of a replica. Over several hosts goes only what no single host has room for.
    """
    of_host: dict[str, list[tuple[int, ...]]] = {}
    for member in members:
        of_host.setdefault(hosts[member], []).append((member,))
    by_slice, rest = _put_together(of_host, slices)
    by_stage, parts = _put_together(by_slice, stages)
    place = {member: number for number, member in enumerate(members)}
    replicas = sorted(chain.from_iterable(by_stage.values()), key=lambda replica: min(map(place.__getitem__, replica)))
    cut = [tuple(replica[start : start + slices] for start in range(0, len(replica), slices)) for replica in replicas]
    return Mesh(tuple(cut), tuple(sorted(chain(rest, parts), key=place.__getitem__)))


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
