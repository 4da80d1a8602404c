"""Which samples of a global batch each worker computes, where hosts hold different parts of the data.

How many samples a worker computes is the affair of its share. Which ones is decided here: as far as the sizes allow,
those that its host holds. The batch stays what it is, and so does the sum of its gradients; fewer bytes travel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cordee.core.errors import DataError
from cordee.feed.permute import Ids

MOST_HOSTS = 63
"""Hosts whose data can be told apart: one bit each."""
NOWHERE = -1
"""The host of a worker that is not known."""


class Held(NamedTuple):
    """Who holds what of one batch."""

    masks: NDArray[np.int64]
    """For each position the hosts that hold its sample, one bit per host."""
    hosts: tuple[int, ...]
    """For each worker the number of its host; `NOWHERE` if none of these."""


@dataclass(frozen=True)
class Holders:
    """Which hosts hold which samples of a source; the same value on all workers."""

    hosts: tuple[str, ...]
    """Their addresses, or what else workers call their hosts."""
    rows: tuple[int, ...]
    """Of each run of samples (a shard, a block), one after the other."""
    masks: tuple[int, ...]
    """For each run the hosts that hold it: bit `i` for `hosts[i]`."""
    _ends: Ids = field(init=False, repr=False, compare=False)
    _masks: Ids = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse what does not fit together."""
        if len(self.rows) != len(self.masks):
            raise DataError(f"{len(self.rows)} runs of samples, but holders of {len(self.masks)}: give one per run")
        if len(self.hosts) > MOST_HOSTS:
            raise DataError(f"{len(self.hosts)} hosts hold data: at most {MOST_HOSTS} can be told apart")
        object.__setattr__(self, "_ends", np.cumsum(self.rows, dtype=np.int64))
        object.__setattr__(self, "_masks", np.asarray(self.masks, np.int64))

    @staticmethod
    def of(rows: Sequence[int], held: Mapping[str, Sequence[int]]) -> Holders:
        """Of a table: for each host the runs that it holds, by number; `rows` has the samples of each run."""
        hosts, masks = tuple(sorted(held)), [0] * len(rows)
        for bit, host in enumerate(hosts):
            for run in held[host]:
                if not 0 <= run < len(rows):
                    raise DataError(f"host {host} is to hold run {run}, but there are {len(rows)}, from 0")
                masks[run] |= 1 << bit
        return Holders(hosts, tuple(rows), tuple(masks))

    def of_samples(self, ids: Ids) -> NDArray[np.int64]:
        """For each sample the hosts that hold it, one bit per host."""
        masks: NDArray[np.int64] = self._masks[np.searchsorted(self._ends, ids, side="right")]
        return masks


@dataclass(frozen=True)
class Near:
    """Who holds which sample, and which worker is on which host: what the rule `local` goes by."""

    holders: Holders
    homes: tuple[tuple[int, str], ...]
    """The number by which shares name a worker, and its host."""
    rows: Ids | None = field(default=None, compare=False)
    """Which samples of the source that is held the ids stand for; None: the same."""

    def of(self, ids: Ids, owners: Sequence[int]) -> Held:
        """Who holds what of a batch that is cut over `owners`."""
        numbers = {host: number for number, host in enumerate(self.holders.hosts)}
        homes = dict(self.homes)
        hosts = tuple(numbers.get(homes.get(owner, ""), NOWHERE) for owner in owners)
        return Held(self.holders.of_samples(ids if self.rows is None else self.rows[ids]), hosts)


def local_owners(held: Held, sizes: Sequence[int]) -> Ids:
    """For every position of a batch the index of the worker that computes it; worker `i` computes `sizes[i]` of them.

    Samples that few hosts hold are given out first, each to a host that holds it as long as the shares of that host's
    workers have room; what is left over goes where room is left. Ties by position. Where each sample has one holder,
    no other way has more samples at home.
    """
    masks = held.masks
    room = np.asarray(sizes, np.int64).copy()
    workers = np.full(len(masks), -1, np.int64)
    kinds, kind_of = np.unique(masks, return_inverse=True)
    by_kind = np.split(np.argsort(kind_of, kind="stable"), np.cumsum(np.bincount(kind_of, minlength=len(kinds)))[:-1])
    hosts = np.asarray(held.hosts, np.int64)
    for at in sorted(range(len(kinds)), key=lambda at: (int(kinds[at]).bit_count(), at)):
        near = np.flatnonzero((hosts >= 0) & ((int(kinds[at]) >> np.maximum(hosts, 0)) & 1 == 1))
        # Of the hosts that hold these, the one whose workers have the most room comes first.
        total = {int(host): int(room[hosts == host].sum()) for host in np.unique(hosts[near])}
        turn = sorted(near.tolist(), key=lambda worker: (-total[int(hosts[worker])], int(hosts[worker]), worker))
        _give(by_kind[at], turn, room, workers)
    _give(np.flatnonzero(workers < 0), range(len(room)), room, workers)
    return workers


def _give(positions: Ids, turn: Sequence[int], room: Ids, workers: Ids) -> None:
    """Give positions out to workers in this turn, to each as many as it has room for."""
    edges = np.minimum(np.cumsum([0, *(int(room[worker]) for worker in turn)]), len(positions)).tolist()
    for worker, (start, stop) in zip(turn, pairwise(edges), strict=True):
        workers[positions[start:stop]] = worker
        room[worker] -= stop - start
