"""What a GPU keeps in host memory: the state of optimizers, and activations (plan key `offload`).

Both travel on streams of their own, one for each direction, beside what is computed; the memory they take on the GPU
meanwhile is bounded, because the host waits for the oldest copy under way before it begins too many.

The state of an optimizer passes over the GPU bucket by bucket in each update: while one is updated, the next comes and
the one before leaves. So any optimizer works, with the same kernels as without, and host memory holds the state alone:
an update on the host would need a copy of parameters and gradients there.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from cordee.core.plan import Plan
from cordee.core.refusals import refuse_on_cpu
from cordee.split.recompute import recompute
from cordee.sync.stepping import is_torchs_own

BUCKET_BYTES = 256 * 2**20
"""Parameters whose state is on the GPU together; two to three such buckets are under way."""
LEAST_BYTES = 2**20
"""Smaller activations stay where they are: their copies would cost more than they save."""
LEAST_STATE_BYTES = 2**12
UNDER_WAY_BYTES = 2 * 2**30
"""Activations that are being copied at once, in each direction."""


def spare_memory(model: nn.Module, plan: Plan, device: str, gates: Collection[str] = ()) -> None:
    """Let a model keep no more than its plan says, in place: `recompute`, then `offload`; `gates` are its stages'."""
    refuse_on_cpu(plan.offload, device)
    recompute(model, plan.recompute, compiled=plan.compile, gates=gates)
    if plan.offload in ("activations", "all"):
        store_activations(model)


class HostState:
    """The state of one optimizer in host memory: takes the place of its `step`."""

    def __init__(self, optimizer: Optimizer) -> None:
        """The state that is there already moves with the first update."""
        self._optimizer = optimizer
        self._step: Callable[..., Any] = optimizer.step
        self._up, self._down = _stream(), _stream()
        self._homes: dict[nn.Parameter, list[Tensor | None]] = {}
        """The host memory of each tensor of a parameter's state; None for one that stays where it is."""
        # A method of the optimizer: schedules of torch wrap its `__func__`, and call that with the optimizer.
        optimizer.step = MethodType(lambda _, *args, **kwargs: self._update(*args, **kwargs), optimizer)  # type: ignore[method-assign]

    def _update(self, *args: Any, **kwargs: Any) -> Any:
        """One update; afterwards all of the state is in host memory, complete."""
        buckets = self._buckets()
        left: deque[torch.cuda.Event] = deque()
        arrived = self._fetch(buckets[0]) if buckets else None
        result = None
        for place, bucket in enumerate(buckets):
            if len(left) > 1:  # or all buckets would be on the GPU at once
                left.popleft().synchronize()
            following = self._fetch(buckets[place + 1]) if place + 1 < len(buckets) else None
            if arrived is not None:
                torch.cuda.current_stream().wait_event(arrived)
            with _only(self._optimizer, bucket):
                result = self._step(*args, **kwargs)
            left.append(self._store(bucket))
            arrived = following
        self._down.synchronize()
        return result

    def _buckets(self) -> list[list[nn.Parameter]]:
        """Parameters with gradients; all together for an optimizer that may not go by single parameters."""
        groups = self._optimizer.param_groups
        given = [one for group in groups for one in group["params"] if one.grad is not None]
        if not is_torchs_own(self._optimizer):
            return [given]
        buckets: list[list[nn.Parameter]] = [[]]
        size = 0
        for one in given:
            if size and size + one.nbytes > BUCKET_BYTES:
                buckets.append([])
                size = 0
            buckets[-1].append(one)
            size += one.nbytes
        return buckets

    def _fetch(self, bucket: Sequence[nn.Parameter]) -> torch.cuda.Event:
        """Begin to copy state to the GPU."""
        state, compute = self._optimizer.state, torch.cuda.current_stream()
        with torch.cuda.stream(self._up):
            for parameter in bucket:
                if not state.get(parameter):
                    continue
                leaves, form = pytree.tree_flatten(dict(state[parameter]))
                homes = [one if _travels(one) and one.is_cpu else None for one in leaves]
                small = [isinstance(one, Tensor) and one.dim() and one.is_cpu and not _travels(one) for one in leaves]
                for place, is_small in enumerate(small):  # restored to host memory, and from now on where it is used
                    leaves[place] = leaves[place].to(parameter.device) if is_small else leaves[place]
                for place, home in enumerate(homes):
                    if home is not None:
                        leaves[place] = pin(home).to(parameter.device, non_blocking=True)
                        leaves[place].record_stream(compute)
                self._homes[parameter] = homes
                state[parameter] = pytree.tree_unflatten(leaves, form)
        return _now(self._up)

    def _store(self, bucket: Sequence[nn.Parameter]) -> torch.cuda.Event:
        """Begin to copy state back, once it is updated."""
        state = self._optimizer.state
        self._down.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._down):
            for parameter in bucket:
                if not state.get(parameter):
                    continue
                leaves, form = pytree.tree_flatten(dict(state[parameter]))
                homes = self._homes.pop(parameter, [])
                homes = homes if len(homes) == len(leaves) else [None] * len(leaves)  # the first update makes it
                for place, (made, known) in enumerate(zip(leaves, homes, strict=True)):
                    if _travels(made) and made.is_cuda:
                        fits = known is not None and (known.shape, known.dtype) == (made.shape, made.dtype)
                        home = known if known is not None and fits else pin(torch.empty_like(made, device="cpu"))
                        leaves[place] = home.copy_(made, non_blocking=True)
                        made.record_stream(self._down)
                state[parameter] = pytree.tree_unflatten(leaves, form)
        return _now(self._down)


def _travels(value: Any) -> bool:
    return isinstance(value, Tensor) and value.nbytes >= LEAST_STATE_BYTES


@contextmanager
def _only(optimizer: Optimizer, chosen: Sequence[nn.Parameter]) -> Iterator[None]:
    """In here the optimizer has these parameters alone."""
    groups, wanted = optimizer.param_groups, set(chosen)
    every = [group["params"] for group in groups]
    for group in groups:
        group["params"] = [one for one in group["params"] if one in wanted]
    optimizer.param_groups = [group for group in groups if group["params"]]
    try:
        yield
    finally:
        for group, parameters in zip(groups, every, strict=True):
            group["params"] = parameters
        optimizer.param_groups = groups


_pinned: dict[int, weakref.finalize[Any, Any]] = {}


def pin(tensor: Tensor) -> Tensor:
    """Lock the memory of a host tensor, so that a GPU copies from it by itself; where that is not allowed, as it is.

    torch's own pinned memory comes in powers of two: up to twice of what a large state needs.
    """
    address = tensor.data_ptr()
    if not tensor.nbytes or address in _pinned or tensor.is_pinned():
        return tensor
    if int(_runtime().cudaHostRegister(address, tensor.nbytes, 0)) == 0:
        _pinned[address] = weakref.finalize(tensor, _unpin, address)
    return tensor


def _unpin(address: int) -> None:
    _pinned.pop(address, None)
    _runtime().cudaHostUnregister(address)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def _now(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """A mark behind all that was given to this stream."""
    event: torch.cuda.Event = stream.record_event()
    return event


# ------------------------------------------------------------- activations


def store_activations(model: nn.Module) -> None:
    """Let a model keep what its backward pass needs in host memory, in place."""
    of_class = {"host": HostActivations(model), "__module__": type(model).__module__}
    model.__class__ = type(type(model).__name__, (_Storing, type(model)), of_class)


class _Storing(nn.Module):
    """Takes the place of a model's class."""

    host: HostActivations

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or not self.host.on:
            return super().forward(*args, **kwargs)
        with torch.autograd.graph.saved_tensors_hooks(self.host.pack, self.host.unpack):
            return super().forward(*args, **kwargs)


@contextmanager
def leaving_activations(model: nn.Module) -> Iterator[None]:
    """In here activations stay on the GPU, where they can be counted."""
    hosts = [model.host] if isinstance(model, _Storing) else []
    for host in hosts:
        host.on = False
    try:
        yield
    finally:
        for host in hosts:
            host.on = True


class HostActivations:
    """Copies what a forward pass keeps to host memory, and back when the backward pass comes to it."""

    def __init__(self, model: nn.Module) -> None:
        """`model`'s parameters stay where they are."""
        self.on = True
        self._model = weakref.ref(model)
        self._up, self._down = _stream(), _stream()
        self._leaving, self._coming = _Queue(), _Queue()
        self._last: Callable[[], _Stored | None] = lambda: None
        self._parameters: set[int] = set()

    def pack(self, tensor: Tensor) -> Tensor | _Stored:
        """What the graph holds in place of `tensor`."""
        if not tensor.is_cuda or tensor.nbytes < LEAST_BYTES or tensor.layout != torch.strided:
            return tensor
        if not self._parameters and (model := self._model()) is not None:
            self._parameters = {one.untyped_storage().data_ptr() for one in model.parameters()}
        if tensor.untyped_storage().data_ptr() in self._parameters:
            return tensor
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._down.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._down):
            host.copy_(tensor.detach().contiguous(), non_blocking=True)
        tensor.record_stream(self._down)
        left = _now(self._down)
        self._leaving.add(left, tensor.nbytes)
        stored = _Stored(host, tensor.device, left, self._last)
        self._last = weakref.ref(stored)
        return stored

    def unpack(self, kept: Tensor | _Stored) -> Tensor:
        """The tensor again; the one that was kept before it, which is needed next, begins to come too."""
        if isinstance(kept, Tensor):
            return kept
        before = kept.before()
        for one in (kept, *(() if before is None else (before,))):
            one.begin(self._up)
        tensor, arrived = kept.begin(self._up)
        kept.coming = None
        compute = torch.cuda.current_stream()
        compute.wait_event(arrived)
        tensor.record_stream(compute)
        self._coming.add(_now(compute), tensor.nbytes)
        return tensor


class _Stored:
    """An activation in host memory."""

    def __init__(
        self, host: Tensor, device: torch.device, left: torch.cuda.Event, before: Callable[[], _Stored | None]
    ) -> None:
        self.host, self.device, self.left, self.before = host, device, left, before
        self.coming: tuple[Tensor, torch.cuda.Event] | None = None

    def begin(self, stream: torch.cuda.Stream) -> tuple[Tensor, torch.cuda.Event]:
        """Begin to copy it to the GPU, unless that is under way."""
        if self.coming is None:
            with torch.cuda.stream(stream):
                stream.wait_event(self.left)
                self.coming = self.host.to(self.device, non_blocking=True), _now(stream)
        return self.coming


class _Queue:
    """Copies under way; the host waits for the oldest where they hold too much memory."""

    def __init__(self) -> None:
        self._events: deque[tuple[torch.cuda.Event, int]] = deque()
        self._bytes = 0

    def add(self, event: torch.cuda.Event, size: int) -> None:
        self._events.append((event, size))
        self._bytes += size
        while self._bytes > UNDER_WAY_BYTES and len(self._events) > 1:
            oldest, freed = self._events.popleft()
            oldest.synchronize()
            self._bytes -= freed
