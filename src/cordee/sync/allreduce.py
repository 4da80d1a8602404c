"""All-reduce of gradients: flat buckets filled by hooks while the backward pass goes on, summed over all replicas.

The loss of each share was scaled by its weight over the weight of the global batch, so the plain sum over the
replicas is the gradient of the mean over the global batch, whatever the shares. A few numbers ride along in the last
bucket (loss, wishes to stop, digests), so that a step needs no collective of its own for them.

Two sets of buckets take turns: a replica that is a step ahead still holds the reduced gradient of the last step, and
can hand it to a peer that lost it, while its hooks already fill the other set. Memory: two gradients, and a third
during the update of an optimizer that is not PyTorch's own; those that the backward pass makes are let go one by one as
they are copied, so that it uses the same memory again and again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from cordee.core.errors import ModelError
from cordee.group.rope import Rope
from cordee.sync import sparse
from cordee.sync.sparse import is_sparse

FIRST_BUCKET_MB = 1.0
"""The first bucket is small, so that the wire is busy early."""
FINITE, NOT_FINITE = 1.0, 2.0
"""What became of a gradient that was treated."""
_LATE = 2.0**12
"""Rides along for a parameter whose gradient is sparse though it lies in a bucket; more than there are replicas."""
Extras = Callable[[], Sequence[float]]
"""Gives the numbers that ride along; always as many."""


@dataclass
class _Bucket:
    """Some parameters of one type and device, and their gradients side by side in flat memory, twice."""

    parameters: list[nn.Parameter]
    flats: list[Tensor]
    views: list[list[Tensor]]
    missing: int = 0
    work: Any = None


class Reducer:
    """Sums gradients over the members of a rope, together with a few numbers that ride along."""

    def __init__(self, parameters: Iterable[nn.Parameter], rope: Rope, *, bucket_mb: float, overlap: bool) -> None:
        """Put hooks on `parameters`, unless we are alone; memory is taken when the first step needs it."""
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.rope = rope
        self.overlap = overlap
        self._bucket_mb = bucket_mb
        self._buckets: list[_Bucket] = []
        self._places: list[tuple[_Bucket, int] | None] = []
        """Where each parameter lies: its bucket, and its number in it; None for those with sparse gradients."""
        self._sparse: set[int] = set()
        """The numbers of parameters with sparse gradients, which lie in no bucket."""
        self._riders: list[NDArray[Any]] = []
        self._treated = [torch.zeros(2, dtype=torch.float64) for _ in range(2)]
        """For each set, and handed over with it: what became of its gradients in `treat`, and their factor there."""
        self._extras: Extras = tuple
        self._armed = False
        self._filled = False
        """The backward pass for which it was armed has come to its end."""
        self._generation = 0
        """The rope's, when the sums of this step were begun."""
        self._turn = self._kept = 0
        """The set in use, and the one that holds the last result, until there is a new one."""
        self._seen: set[int] = set()
        self._reader: Optimizer | None = None
        """The optimizer that was seen to read gradients without writing into them."""
        self._launched = 0
        self._handles = [
            parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, number))  # type: ignore[no-untyped-call]
            for number, parameter in enumerate(self.parameters if rope.size > 1 else ())
        ]

    def close(self) -> None:
        """Take the hooks off the parameters."""
        for handle in self._handles:
            handle.remove()

    # ------------------------------------------------------------- one step

    def arm(self) -> None:
        """The next backward pass is the last one of this step: hooks may send what is complete."""
        self._armed = self.overlap and self.rope.size > 1 and bool(self._buckets)
        self._filled = False
        if self._armed:
            self._begin()

    def filled(self) -> None:
        """The backward pass for which it was armed is over: what has no gradient by now gets none."""
        self._filled = True

    def ride_along(self, extras: Extras) -> None:
        """Numbers to be summed with the gradients of this step, asked for when they are sent; small ones stay exact."""
        self._extras = extras

    def hold_back(self) -> bool:
        """More gradients will follow those that the hooks have sent in this step. False on a broken rope.

        What was begun is summed to its end, as all replicas do; one of them keeps the sum among its own gradients, to
        be sent with what follows, and the others go on from zero.
        """
        if not self._armed:
            return True
        self._armed = False
        if self._generation != self.rope.generation:  # begun among others: nobody waits for the rest of it
            self._launched = 0
            return False
        while self._launched < len(self._buckets):
            self._launch()
        self._launched = 0
        complete = [bucket.work is not None and self.rope.wait(bucket.work) for bucket in self._buckets]
        if not all(complete) or self._found_late():
            return False
        self._hand_out()
        if self.rope.rank != 0:
            for bucket in self._buckets:
                bucket.flats[self._turn].zero_()
        return True

    def forget(self) -> None:
        """This step is void: let what the hooks have sent come to its end, whatever that is, and drop all gradients.

        Replicas whose backward pass came to its end may have begun different numbers of sums, one with an empty share
        none: all of them begin the rest too, as later sums would meet those otherwise. In the midst of a backward pass
        nothing is begun: what a failing replica has must not look to the others like a gradient.
        """
        if self._armed and self._filled and self._generation == self.rope.generation:
            while self._launched < len(self._buckets):
                self._launch()
        self._armed = False
        for bucket in self._buckets[: self._launched]:
            if bucket.work is not None:
                self.rope.wait(bucket.work)
        self._launched = 0
        self.clear()

    def finish(self, *, void: bool) -> list[float] | None:
        """Wait until gradients and extras are summed; None if the step has to be done again.

        Afterwards every parameter's `grad` is the global one; None where no replica had any, as in one process.
        """
        if self.rope.size == 1:
            self.rope.settle((), ())
            return list(self._extras())
        if not self._buckets and not self._build(len(self._extras())):
            self.rope.settle((), (), void=True)
            return None
        if not self._armed:
            self._begin()
        self._armed = False
        own = [self.parameters[number] for number in sorted(self._sparse)]
        rows = sparse.add_up(own, self.rope) if own else []
        while self._launched < len(self._buckets) and rows is not None:
            self._launch()
        works = [bucket.work for bucket in self._buckets]
        result = [*(bucket.flats[self._turn] for bucket in self._buckets), self._treated[self._turn]]
        self._launched = 0
        if not self.rope.settle(works, result, void=void):
            return None
        self._kept = self._turn
        if self._found_late():
            return None
        for parameter, gradient in zip(own, rows or (), strict=True):
            parameter.grad = gradient
        self._hand_out()
        summed: list[float] = self._riders[self._turn][: -len(self.parameters)].tolist()
        return summed

    def treat(self, *, scale: float = 1.0, clip: float | None = None) -> bool:
        """Undo the scale of the loss and bound the norm of the global gradient; False if it is not finite.

        Done once: a peer that gets the gradient handed over gets it treated, and is told so.
        """
        if scale == 1.0 and clip is None:
            return True
        treated, values = self._treated[self._turn], sparse.values_of(self.parameters)
        became, factor = treated.tolist() if self.rope.size > 1 else (0.0, 1.0)
        if became:  # handed over; but not what is sparse, of which every replica has all rows
            for one in values:
                one.mul_(factor)
            return bool(became == FINITE)
        gradients = values + [p.grad for p in self.parameters if p.grad is not None and not is_sparse(p.grad)]
        finite = scale == 1.0 or _unscale(gradients, scale)
        factor = 1.0 / scale
        if finite and clip is not None:
            bound = _bound(gradients, clip)
            factor *= bound.item() if values else 1.0  # on a GPU it would be a wait
        treated[0], treated[1] = FINITE if finite else NOT_FINITE, factor
        return finite

    def update(self, optimizer: Optimizer) -> None:
        """Let the optimizer step; a peer that is behind still gets what was agreed on, whatever it does to gradients.

        One of PyTorch's own that was seen to read only gets the buckets themselves. Any other gets copies, which it may
        write into, also unseen (`p.grad.data`), or keep as its state, though the buckets are filled anew later.
        """
        if self.rope.size == 1:
            optimizer.step()
            return
        if optimizer is self._reader and _is_torchs_own(optimizer):
            given = [bucket.flats[self._turn] for bucket in self._buckets]
        else:
            for parameter in self.parameters:
                if parameter.grad is not None and not is_sparse(parameter.grad):
                    parameter.grad = parameter.grad.clone()
            given = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        versions = [tensor._version for tensor in given]
        optimizer.step()
        self._reader = optimizer if versions == [tensor._version for tensor in given] else None

    def covers(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Whether these are the parameters that it sums: later ones may be unfrozen or added."""
        return len(self.parameters) == len(parameters) and all(map(operator.is_, self.parameters, parameters))

    def clear(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    # ------------------------------------------------------------- inside

    def _begin(self) -> None:
        self._turn = 1 - self._kept
        self._launched = 0
        self._generation = self.rope.generation
        self._seen.clear()
        self._treated[self._turn].zero_()
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)
            bucket.work = None

    def _on_gradient(self, number: int, parameter: nn.Parameter) -> None:
        if not self._armed or (found := self._places[number]) is None:
            return
        if number in self._seen:
            raise ModelError(
                "a parameter gets its gradient in several pieces within one backward pass, as with reentrant "
                "checkpointing: use checkpoint(..., use_reentrant=False), or the plan overlap=false"
            )
        self._seen.add(number)
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

    def _launch(self) -> None:
        """Begin to add up the next bucket's gradients, after copying those that the hooks have not."""
        bucket = self._buckets[self._launched]
        self._launched += 1
        strided, views = torch.strided, bucket.views[self._turn]
        gradients = [parameter.grad for parameter in bucket.parameters]
        pairs = [(view, made) for view, made in zip(views, gradients, strict=True) if made is not view]
        copied = [(view, made) for view, made in pairs if made is not None and made.layout is strided]
        if len(copied) < len(pairs):
            for view, made in pairs:
                if made is None or is_sparse(made):
                    view.zero_()
        if copied:
            torch._foreach_copy_([view for view, _ in copied], [made for _, made in copied])
        if self._launched == len(self._buckets):
            # On a broken rope the rider stays here, and with it the agreement: nobody commits without everybody's.
            if not self.rope.complete([one.work for one in self._buckets[:-1]]):
                return
            rider, count = self._riders[self._turn], len(self.parameters)
            rider[:-count] = self._extras()
            gradients = [parameter.grad for parameter in self.parameters]
            rider[-count:] = [made is not None for made in gradients]
            late = [number for number, made in enumerate(gradients) if made is not None and made.layout is not strided]
            rider[[number - count for number in late if number not in self._sparse]] = _LATE
        bucket.work = self.rope.start_sum(bucket.flats[self._turn])

    def _found_late(self) -> bool:
        """Whether a gradient was sparse for the first time: then no replica uses this step, and all do it again."""
        present = self._riders[self._turn][-len(self.parameters) :]
        if present.max() < _LATE:
            return False
        self._sparse |= set((present >= _LATE).nonzero()[0].tolist())
        self._buckets = []
        for callback in self.rope.on_regroup:  # what was read ahead is read again
            callback()
        return True

    def _hand_out(self) -> None:
        """Point every `grad` at the sum; at None where no replica had any."""
        for bucket in self._buckets:
            for parameter, view in zip(bucket.parameters, bucket.views[self._turn], strict=True):
                if parameter.grad is not view:
                    parameter.grad = view
        present = self._riders[self._turn][-len(self.parameters) :]
        if not present.all():
            for parameter, count in zip(self.parameters, present, strict=True):
                if count == 0.0:
                    parameter.grad = None

    def _build(self, extras: int) -> bool:
        """Group the parameters, last first: roughly the order in which their gradients come. False: broken rope."""
        found = sparse.find(self.parameters, self.rope)
        if found is None:
            return False
        self._sparse |= found
        groups: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
        closed: list[list[nn.Parameter]] = []
        dense = [parameter for number, parameter in enumerate(self.parameters) if number not in self._sparse]
        for parameter in reversed(dense):
            group = groups.setdefault((parameter.dtype, parameter.device), [])
            group.append(parameter)
            limit = self._bucket_mb if closed else min(FIRST_BUCKET_MB, self._bucket_mb)
            if sum(p.nbytes for p in group) >= limit * 2**20:  # a large one is sent while the others are computed
                closed.append(list(group))
                group.clear()
        closed += [group for group in groups.values() if group]
        last = closed[-1][0] if closed else None
        if last is None or last.device.type != "cpu" or last.dtype not in (torch.float32, torch.float64):
            closed.append([])  # the rider needs a bucket that is exact and near
        riders = extras + len(self.parameters)
        for group in closed:
            self._buckets.append(_make_bucket(group, riders if group is closed[-1] else 0))
        places = {id(p): (bucket, place) for bucket in self._buckets for place, p in enumerate(bucket.parameters)}
        self._places = [places.get(id(parameter)) for parameter in self.parameters]
        self._riders = [flat[-riders:].numpy() for flat in self._buckets[-1].flats]
        if len(self._buckets) == 1:  # full when the backward pass ends: nothing to send before, and hooks cost time
            self.close()
            self.overlap = False
        return True


def _unscale(gradients: list[Tensor], scale: float) -> bool:
    """Divide by the scale, in place; False if a number among them is not finite."""
    groups: dict[torch.device, list[Tensor]] = {}
    for gradient in gradients:
        groups.setdefault(gradient.device, []).append(gradient)
    found = {device: torch.zeros(1, device=device) for device in groups}
    for device, group in groups.items():
        factor = torch.full((1,), 1.0 / scale, device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(group, found[device], factor)
    return not any(flag.item() for flag in found.values())


def _bound(gradients: list[Tensor], clip: float) -> Tensor:
    """Shorten them together to the norm `clip`, in place, if it is more; by which factor. As `clip_grad_norm_` does."""
    factor = torch.clamp(clip / (nn.utils.get_total_norm(gradients) + 1e-6), max=1.0)
    for device in {gradient.device for gradient in gradients}:
        torch._foreach_mul_([one for one in gradients if one.device == device], factor.to(device))
    return factor


def _make_bucket(group: list[nn.Parameter], riders: int) -> _Bucket:
    """Memory for the gradients of `group` and `riders` numbers behind them, twice."""
    size = sum(parameter.numel() for parameter in group) + riders
    like = group[0] if group else torch.empty(0, dtype=torch.float64)
    flats = [torch.zeros(size, dtype=like.dtype, device=like.device) for _ in range(2)]
    return _Bucket(group, flats, [_views(flat, group) for flat in flats])


def _views(flat: Tensor, group: Sequence[nn.Parameter]) -> list[Tensor]:
    """Every parameter's window of `flat`, with the parameter's own strides where they are dense (channels-last)."""
    views, offset = [], 0
    for parameter in group:
        strides = parameter.stride() if is_dense(parameter) else parameter.contiguous().stride()
        views.append(flat.as_strided(parameter.shape, strides, offset))
        offset += parameter.numel()
    return views


def is_dense(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor fill its memory without a gap, in whatever order; a slice of columns does not."""
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()  # which only keeps strides that do


def _is_torchs_own(optimizer: Optimizer) -> bool:
    """Whether it is PyTorch's code alone that runs in a step, of which we know that version counters see its writes."""
    if not f"{type(optimizer).__module__}.".startswith("torch.optim."):
        return False
    hooks = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    )
    return not any(hooks)
