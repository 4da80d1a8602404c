"""A sum over the pieces of a batch in one fixed order: a binary tree over their numbers, on any workers.

Two neighbours are added first, then two neighbouring pairs, and so on; what has no neighbour goes up as it is. A worker
folds what it has up to the roots of whole subtrees. Those are exchanged, and folded in the same way by all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from functools import lru_cache
from operator import add
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Node(NamedTuple):
    """A subtree: the pieces from `place << level` on, `1 << level` of them as far as there are so many."""

    level: int
    place: int


def fold(found: MutableMapping[Node, T], count: int, add: Callable[[T, T], T]) -> None:
    """Put sums in the place of all neighbours that are there, of a tree over `count` pieces, from the bottom up."""
    for level in range((count - 1).bit_length()):
        for node in sorted(one for one in found if one.level == level and one.place % 2 == 0):
            right = Node(level, node.place + 1)
            if right.place << level >= count:
                found[Node(level + 1, node.place // 2)] = found.pop(node)
            elif right in found:
                found[Node(level + 1, node.place // 2)] = add(found.pop(node), found.pop(right))


def roots(pieces: Iterable[int], count: int) -> list[Node]:
    """What `fold` leaves of these pieces, in order."""
    found = {Node(0, piece): 0 for piece in pieces}
    fold(found, count, add)
    return sorted(found)


@lru_cache(maxsize=64)
def roots_of(owners: tuple[int, ...], replicas: int) -> tuple[tuple[Node, ...], ...]:
    """The subtrees that each replica sends, if `owners` says who has which piece."""
    mine = ([piece for piece, owner in enumerate(owners) if owner == replica] for replica in range(replicas))
    return tuple(tuple(roots(pieces, len(owners))) for pieces in mine)


def total(values: Sequence[float]) -> float:
    """The sum of what each piece has."""
    if not values:
        return 0.0
    found = {Node(0, piece): value for piece, value in enumerate(values)}
    fold(found, len(values), add)
    (whole,) = found.values()
    return whole + 0.0  # of which the sign does not depend on who has what: zeros of others were added to each value
