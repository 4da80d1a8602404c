"""All-reduce of gradients: flat buckets filled by hooks while the backward pass goes on, summed over all replicas.

The loss of each share was scaled by its weight over the weight of the global batch, so the plain sum over the
replicas is the gradient of the mean over the global batch, whatever the shares. The record of the step travels in the
last bucket, so that it needs no collective of its own.

A replica that is a step ahead still holds the reduced gradient of the last step, and can hand it to a peer that lost
it. Small gradients have two sets of buckets for that, which take turns: while one is held, hooks fill the other. Large
ones have one set; before it is filled again all replicas have told each other that they have the last result, by a sum
of one number that runs beside the next forward pass.

Memory: two small gradients or one large one, and another during the update of an optimizer that is not PyTorch's own;
those that the backward pass makes are let go one by one as they are copied, so that it uses the same memory again.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cordee.core.errors import ModelError
from cordee.core.record import SIZE, Record
from cordee.group.comm import NEVER, Handle
from cordee.sync import sparse
from cordee.sync.buckets import Buckets, most_mb_on
from cordee.sync.gradients import treat
from cordee.sync.lossy import Exact, Lossy
from cordee.sync.seam import Agreed, Kept, Recorded, Sync, Treatment
from cordee.sync.sparse import is_sparse
from cordee.sync.stepping import is_torchs_own

CPU_BUCKET_MB, SMALL_BUCKET_MB, BUCKET_MB = 4.0, 2.0, 25.0
"""Where the plan does not say: sums on CPUs, which take long, begin early in the backward pass; by a codec, in smaller
pieces, because each is encoded before it is sent."""
FINITE, NOT_FINITE = 1.0, 2.0
"""What became of a gradient that was treated."""


class AllReduce(Sync):
    """Sums gradients over all replicas; see `Sync`."""

    def __init__(self, parameters: Iterable[nn.Parameter], adds: Exact, *, bucket_mb: float, overlap: bool) -> None:
        """Put hooks on `parameters`, unless this worker is alone; memory is taken when the first step needs it."""
        super().__init__(parameters)
        self.team, self._adds = adds.team, adds
        self.overlap = overlap
        self._bucket_mb = bucket_mb
        self._buckets = Buckets()
        """Empty until the first step needs them."""
        self._sparse: set[int] = set()
        """The numbers of parameters with sparse gradients, which lie in no bucket."""
        self._treated = [torch.zeros(3, dtype=torch.float64) for _ in range(2)]
        """For each set, and handed over with it: what became of its gradients in `treat`, the factor, the norm."""
        self._record: Recorded | None = None
        self._armed = False
        """Whether hooks send what is complete."""
        self._generation = 0
        """The one in which the sums of this step were begun."""
        self._turn = self._kept = 0
        """The set in use, and the one that holds the last result, until there is a new one."""
        self._told: tuple[int, Handle] | None = None
        """The sum by which all replicas say that they have the last result, and its generation, until it has come."""
        self._seen: set[int] = set()
        self._reader: Optimizer | None = None
        """The optimizer that was seen to read gradients without writing into them."""
        self._launched = 0
        self._handles = [
            parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, number))  # type: ignore[no-untyped-call]
            for number, parameter in enumerate(self.parameters if self.team.replicas > 1 or self.team.grows else ())
        ]

    def merge(self, *, saving: bool = False) -> Kept:
        """Parameters are equal after every step; what a codec left out is added up over the replicas."""
        return self._adds.merge() if saving else {}

    def close(self) -> None:
        """Take the hooks off the parameters."""
        for handle in self._handles:
            handle.remove()

    # ------------------------------------------------------------- one step

    def begin(self, record: Recorded | None) -> bool:
        """With a `record`, let hooks send what is complete; without, more gradients will follow those that they sent.

        In that case what was begun is summed to its end, as all replicas do. One of them keeps the sum among its own
        gradients, to be sent with what follows; the others start from zero. Nothing is sent early any more.
        """
        if record is not None:
            self._record = record
            self._armed = self.overlap and self.team.replicas > 1 and bool(self._buckets) and self._begin()
            return True
        self.overlap = False
        if not self._armed:
            return True
        self._armed = False
        if self._generation != self.team.membership.generation:  # begun among others: the rest is not awaited
            self._launched = 0
            return False
        self._launch_rest()
        self._launched = 0
        complete = [bucket.handle.wait() for bucket in self._buckets]
        if not all(complete) or self._found_late():
            return False
        self._adds.commit()
        self._buckets.hand_out(self._turn)
        for bucket in self._buckets if self.team.replica != 0 else ():
            bucket.flats[self._turn].zero_()
        return True

    def forget(self, *, passed: bool) -> None:
        """Let the sums that the hooks have begun come to their end, whatever that is, and drop all gradients.

        Replicas whose backward pass came to its end may have begun different numbers of sums, one with an empty share
        none: all of them begin the rest too, as later sums would meet those otherwise. In the middle of a backward pass
        nothing is begun: what a failing replica has must not look to the others like a gradient.
        """
        if self._armed and passed and self._generation == self.team.membership.generation:
            self._launch_rest()
        self._armed = False
        for bucket in self._buckets[: self._launched]:
            bucket.handle.wait()
        self._launched = 0
        super().forget(passed=passed)

    def commit(self, record: Recorded, *, void: bool, treatment: Treatment) -> Agreed | None:
        """Wait until gradients and records are summed; None if the step has to be done again.

        Afterwards every parameter's `grad` is the global one; None where no replica had any, as in one process.
        """
        self._record = record
        if self.team.replicas == 1:
            self.team.settle((), ())
            return Agreed(record(), *treat(sparse.numbers_of(self.parameters), *treatment)[:2])
        if not (self._buckets or self._build()) or not (self._armed or self._begin()):
            self.team.settle((), (), void=True)
            return None
        self._armed = False
        own = [self.parameters[number] for number in sorted(self._sparse)]
        rows = sparse.add_up(own, self.team.layers) if own else []
        if rows is not None:
            self._launch_rest()
        handles = [bucket.handle for bucket in self._buckets]
        result = [*(bucket.flats[self._turn] for bucket in self._buckets), self._treated[self._turn]]
        self._launched = 0
        generation = self.team.membership.generation
        if not self.team.settle(handles, result, void=void):
            return None
        self._kept = self._turn
        # A new generation begins with the result everywhere.
        if self._buckets.sets == 1 and generation == self.team.membership.generation:
            self._told = generation, self.team.sums.sum(torch.zeros(1))
        if self._found_late():
            return None
        for parameter, gradient in zip(own, rows or (), strict=True):
            parameter.grad = gradient
        self._buckets.hand_out(self._turn)
        fits, norm = self._treat(treatment)
        if fits:
            self._adds.commit()
        return Agreed(Record.summed(self._buckets.riders[self._turn][:SIZE].tolist()), fits, norm)

    def _treat(self, treatment: Treatment) -> tuple[bool, Tensor]:
        """Done once: a peer that gets the gradient handed over gets it treated, and is told so."""
        treated, values = self._treated[self._turn], sparse.values_of(self.parameters if self._sparse else ())
        became, factor, _ = treated.tolist()
        if became:  # handed over; but not what is sparse, of which every replica has all rows
            for one in values:
                one.mul_(factor)
            return became == FINITE, treated[2]
        fits, norm, bound = treat(values + self._buckets.flats[self._turn], *treatment)
        if treatment != Treatment():
            treated[0] = FINITE if fits else NOT_FINITE
            treated[1] = (bound.item() if values else 1.0) / treatment.scale  # on a GPU it would be a wait
            treated[2:].copy_(norm.reshape(1))
        return fits, norm

    def update(self, optimizer: Optimizer) -> None:
        """Let the optimizer step; a peer that is behind still gets what was agreed on, whatever it does to gradients.

        One of PyTorch's own gets the buckets themselves if it was seen to read only, or if all peers have the result.
        Any other gets copies, which it may write into, also unseen (`p.grad.data`), or keep as its state.
        """
        if self.team.replicas == 1:
            optimizer.step()
            return
        if is_torchs_own(optimizer) and (optimizer is self._reader or (self._buckets.sets == 1 and self._all_have())):
            given = [bucket.flats[self._turn] for bucket in self._buckets]
        else:
            for parameter in self.parameters:
                if parameter.grad is not None and not is_sparse(parameter.grad):
                    parameter.grad = parameter.grad.clone()
            given = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        versions = [tensor._version for tensor in given]
        optimizer.step()
        self._reader = optimizer if versions == [tensor._version for tensor in given] else None

    # ------------------------------------------------------------- inside

    def _all_have(self) -> bool:
        """Wait until all replicas have the last result, which need not be held any more; False if a worker was lost."""
        if self._told is not None and self._told[0] == self.team.membership.generation:
            if not self._told[1].wait():
                return False
            self._told = None
        return True

    def _begin(self) -> bool:
        """A new sum begins, over what was held; False if a worker was lost."""
        if self._buckets.sets == 1 and not self._all_have():
            return False
        self._turn = (self._kept + 1) % self._buckets.sets
        self._launched = 0
        self._generation = self.team.membership.generation
        self._buckets.expect(self.team.replicas)
        self._seen.clear()
        self._treated[self._turn].zero_()
        self._adds.begin()
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)
            bucket.handle = NEVER
        return True

    def _on_gradient(self, number: int, parameter: nn.Parameter) -> None:
        if not self._armed or (found := self._buckets.places[number]) is None:
            return
        if number in self._seen:
            raise ModelError(
                "a parameter gets its gradient in several pieces within one backward pass, as with reentrant "
                "checkpointing: use checkpoint(..., use_reentrant=False), or the plan overlap=false"
            )
        self._seen.add(number)
        self.team.meter.look()
        bucket, place = found
        bucket.missing -= 1
        assert parameter.grad is not None
        if not is_sparse(parameter.grad):
            view = bucket.views[self._turn][place]
            view.copy_(parameter.grad)
            parameter.grad = view
        # Always in the same order: the replicas' collectives have to meet. The last one agrees to all that went before.
        ready = len(self._buckets) - bool(self._sparse)
        while self._launched < ready and self._buckets[self._launched].missing == 0:
            self._launch()

    def _launch_rest(self) -> None:
        while self._launched < len(self._buckets):
            self._launch()

    def _launch(self) -> None:
        """Begin to add up the next bucket's gradients, after copying those that the hooks have not."""
        bucket = self._buckets[self._launched]
        self._launched += 1
        self._buckets.fill(bucket, self._turn)
        if self._launched == len(self._buckets):
            # If a worker was lost, what rides along stays here: without it no replica commits.
            if not all(one.handle.may_commit() for one in self._buckets[:-1]):
                return
            assert self._record is not None
            self._buckets.ride(self._turn, self._record().numbers())
        bucket.handle = self._adds.sum(bucket, self._turn)

    def _found_late(self) -> bool:
        """Whether a gradient was sparse for the first time: then no replica uses this step, and all do it again."""
        if not (late := self._buckets.late(self._turn)):
            return False
        self._sparse |= late
        self._buckets = Buckets()
        for callback in self.team.on_regroup:  # what was read ahead is read again
            callback()
        return True

    def _build(self) -> bool:
        """Take memory for the gradients; False if a worker was lost."""
        found = sparse.find(self.parameters, self.team.layers, self.team.lines.rate)
        if found is None:
            return False
        self._sparse |= found[0]
        self._turn = self._kept = 0
        most_mb = self._bucket_mb or _chosen_mb(self.parameters, self._adds, link=found[1])
        if self.team.sums.shares_memory:  # what travels through it is there twice meanwhile
            most_mb = min(most_mb, CPU_BUCKET_MB)
        self._buckets = Buckets.of(self.parameters, self._sparse, SIZE, most_mb, apart=isinstance(self._adds, Lossy))
        if len(self._buckets) == 1:  # full when the backward pass ends: nothing to send before, and hooks cost time
            self.close()
            self.overlap = False
        return True


def _chosen_mb(parameters: Iterable[nn.Parameter], adds: Exact, link: float) -> float:
    """The size of a bucket where the plan has 0 for it; `link`: what was measured between hosts, 0: nothing."""
    on_cpu, lossy = all(parameter.is_cpu for parameter in parameters), isinstance(adds, Lossy)
    most_mb = BUCKET_MB if not on_cpu else SMALL_BUCKET_MB if lossy else CPU_BUCKET_MB
    return min(most_mb, most_mb_on(link)) if link and not lossy else most_mb
