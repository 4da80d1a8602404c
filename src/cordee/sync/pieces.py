"""`exact=true`: gradients of fixed pieces of a batch, added up in a fixed tree: the same bits on any workers.

A backward pass leaves the gradients of one piece. They are put aside and folded with those of its neighbours as far as
this replica has them. When the step commits, all replicas gather the subtrees that are left, never sums along a ring,
whose order depends on the number of workers, and each folds them to the whole by itself.

What rides along, in a gather of its own: the record, loss and weight of each piece, and which parameters have a
gradient. A parameter without one counts as -0.0, which changes no number that it is added to, not even -0.0.

Cost beside plain sums: gradients set out when the last piece is done; each replica receives from each other one as many
gradients as the one with most subtrees sends (with equal shares of eight pieces: one on 2, 4 and 8 workers, two on 3).
Memory: a gradient for each level of the tree, and what is received.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from cordee.core.errors import UsageError
from cordee.core.record import SIZE, Record
from cordee.group.comm import Handle
from cordee.group.team import Team
from cordee.sync.buckets import grouped, make_bucket, windows
from cordee.sync.gradients import treat
from cordee.sync.seam import Agreed, Recorded, Sync, Treatment
from cordee.sync.sparse import is_sparse
from cordee.sync.tree import Node, fold, roots_of, total

BUCKET_MB = 4.0
"""Gradients that travel together: what comes first is added up while the rest arrives."""
NOTHING = -0.0
"""What a parameter without a gradient counts as."""
Gradients = dict[nn.Parameter, Tensor]


class Pieces:
    """The open step of a loop: whose piece is which, and the gradients of those that this replica has computed."""

    def __init__(self) -> None:
        """No step is open."""
        self.owners: tuple[int, ...] = ()
        """For each piece of the step, the replica that computes it."""
        self.number: int | None = None
        """The piece in hand; None: a borrowed sample, which is in none."""
        self.weights: list[float] = []
        """What each piece of this replica weighs; 0 for the others."""
        self.losses: Callable[[int], list[float]] = lambda count: [0.0] * count
        """The same, of its loss times its weight."""
        self.summed: dict[Node, Gradients] = {}
        self.updated = False
        """Whether the step has had its update."""

    def begin(self, owners: Sequence[int], losses: Callable[[int], list[float]]) -> None:
        """A step begins, or begins again."""
        self.owners, self.losses, self.number = tuple(owners), losses, None
        self.weights = [0.0] * len(owners)
        self.summed.clear()
        self.updated = False

    def take(self, number: int | None, weight: float) -> None:
        """The passes of this piece follow."""
        self.number = number
        if number is not None:
            self.weights[number] = weight

    def end(self, parameters: Iterable[nn.Parameter]) -> None:
        """The passes of the piece in hand are over: put its gradients aside."""
        made = {one: one.grad for one in parameters if one.grad is not None}
        for parameter in made:
            parameter.grad = None
        if self.number is None:
            return
        if any(map(is_sparse, made.values())):
            raise UsageError(
                "exact=true adds up whole gradients, and a layer of this model gives sparse ones: leave sparse=True "
                "out where it is made (nn.Embedding), or leave exact=true out"
            )
        self.summed[Node(0, self.number)] = made
        self.number = None
        fold(self.summed, len(self.owners), _added)


class TreeSums(Sync):
    """Adds up gradients in the tree over all pieces; see `Sync`."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], team: Team, pieces: Callable[[], Pieces], *, bucket_mb: float
    ) -> None:
        """`pieces` gives those of the open step."""
        super().__init__(parameters)
        self._team, self._pieces = team, pieces
        self._groups = grouped(self.parameters, bucket_mb or BUCKET_MB)
        """The parameters whose gradients travel together."""

    def commit(self, record: Recorded, *, void: bool, treatment: Treatment) -> Agreed | None:
        """Gather subtrees and records of all replicas, and fold them; None if the step has to be done again."""
        pieces, team = self._pieces(), self._team
        if pieces.updated:
            raise UsageError(
                "exact=true has one update in a step, but this one has come to a second s.step(): give all parameters "
                "to one optimizer, or leave exact=true out"
            )
        pieces.end(self.parameters)
        count, rider = len(pieces.owners), self._riders(record(), pieces)
        if team.replicas == 1:
            team.settle((), ())
            (whole,) = pieces.summed.values()
        else:
            complete, sums = self._exchange(rider, pieces)
            if not team.settle((), sums, void=void or not complete):
                return None
            rider, *flats = sums
            whole = self._cut(flats, rider[SIZE + 2 * count :])
        pieces.summed.clear()
        pieces.updated = True
        for parameter in self.parameters:
            parameter.grad = whole.get(parameter)
        fits, norm, _ = treat([one.grad for one in self.parameters if one.grad is not None], *treatment)
        agreed, sides = Record.summed(rider[:SIZE].tolist()), rider[SIZE : SIZE + 2 * count].tolist()
        return Agreed(agreed._replace(loss=total(sides[:count]), weight=total(sides[count:])), fits, norm)

    def _riders(self, record: Record, pieces: Pieces) -> Tensor:
        """Numbers that are exact whatever the order they are added up in: small, or zero on all replicas but one."""
        count = len(pieces.owners)
        has = [float(any(one in summed for summed in pieces.summed.values())) for one in self.parameters]
        numbers = [*record._replace(loss=0.0, weight=0.0).numbers(), *pieces.losses(count), *pieces.weights, *has]
        return torch.tensor(numbers, dtype=torch.float64)

    def _exchange(self, own: Tensor, pieces: Pieces) -> tuple[bool, list[Tensor]]:
        """What rides along, and each bucket, summed over all replicas; whether all of it came."""
        sums = self._team.sums
        nodes = roots_of(pieces.owners, sums.size)
        most = max(map(len, nodes))
        mine = [pieces.summed.get(node, {}) for node in nodes[sums.rank]]
        riders = sums.gather(own)
        begun = [self._send(group, mine, most) for group in self._groups]
        came = riders.wait()
        complete = came is not None
        result = [torch.stack(came).sum(0) if came is not None else torch.empty_like(own)]
        for handles, parts in begun:  # all of them, whatever the first says
            ended = [handle.wait() for handle in handles]
            complete &= all(ended)
            found = {node: part[of] for of, each in enumerate(nodes) for node, part in zip(each, parts, strict=False)}
            if all(ended):
                fold(found, len(pieces.owners), Tensor.add_)
            result.append(found[min(found)])
        return complete, result

    def _send(
        self, group: list[nn.Parameter], mine: Sequence[Gradients], most: int
    ) -> tuple[list[Handle], list[list[Tensor]]]:
        """Begin to gather a bucket of each of my subtrees, and of nothing where others have more of them."""
        sums = self._team.sums
        bucket = make_bucket(group, 0, most)
        parts = [[torch.empty_like(flat) for _ in range(sums.size)] for flat in bucket.flats]
        for summed, views in zip(mine, bucket.views, strict=False):
            for parameter, view in zip(group, views, strict=True):
                if parameter not in summed:
                    view.fill_(NOTHING)
            pairs = [(view, summed[one]) for one, view in zip(group, views, strict=True) if one in summed]
            if pairs:
                torch._foreach_copy_([view for view, _ in pairs], [made for _, made in pairs])
        return [sums.gather_into(flat, part) for flat, part in zip(bucket.flats, parts, strict=True)], parts

    def _cut(self, flats: Sequence[Tensor], present: Tensor) -> Gradients:
        """Gradients of their own for the update: what was summed stays as it is, for a peer that may have missed it."""
        has = dict(zip(self.parameters, present.tolist(), strict=True))
        pairs = (zip(group, windows(flat, group), strict=True) for group, flat in zip(self._groups, flats, strict=True))
        return {one: view.clone() for each in pairs for one, view in each if has[one]}


def _added(left: Gradients, right: Gradients) -> Gradients:
    """Both, in the memory of `left`."""
    both = [one for one in left if one in right]
    if both:
        torch._foreach_add_([left[one] for one in both], [right[one] for one in both])
    return {**right, **left}
