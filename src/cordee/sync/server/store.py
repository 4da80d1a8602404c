"""The part of the parameters that one server holds: sums of gradients, and their optimizer. No socket, no thread."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cordee.sync.gradients import norm_of
from cordee.sync.server import rules
from cordee.sync.server.messages import Apply, Form, Held, Item, Load, Rule
from cordee.sync.server.parts import applied_as_part

Attempt = tuple[int, tuple[int, int]]
"""A step, and which try of it."""


class Items:
    """Pushes that are applied by themselves: what workers have pushed so far, and what was applied."""

    def __init__(self) -> None:
        """None yet."""
        self.applied: dict[Item, int] = {}
        """By which worker it was pushed."""
        self._staged: dict[int, tuple[Item, dict[int, Tensor], int]] = {}
        """What each worker has pushed of its item, and in how many messages."""
        self.base = 0
        """Updates that were made before the open window: a worker that comes to it has the parameters of then."""

    def stage(self, item: Item, worker: int, numbers: Sequence[int], gradients: Sequence[Tensor]) -> None:
        """Keep a piece of what a worker pushes of an item; it has one at a time."""
        there, found, pieces = self._staged.get(worker, (item, {}, 0))
        if there != item:
            found, pieces = {}, 0
        found.update(zip(numbers, gradients, strict=True))
        self._staged[worker] = item, found, pieces + 1

    def staged(self, item: Item, worker: int, pieces: int) -> dict[int, Tensor] | None:
        """All that a worker pushed of an item, in so many messages; None if some of it is not here."""
        there, found, here = self._staged.get(worker, (None, {}, 0))
        return found if there == item and here >= pieces else None

    def is_over(self, item: Item, version: int) -> bool:
        """Whether it was applied, or is of a former window; a new window begins with this version."""
        latest = max((one[:2] for one in self.applied), default=(-1, -1))
        if item[:2] > latest:
            self.applied, self.base = {}, version
        return item[:2] < latest or item in self.applied


class Store:
    """One shard of one optimizer's parameters."""

    def __init__(self, shard: int, forms: Sequence[Form]) -> None:
        """Nothing is loaded yet, but gradients can be added up."""
        self.shard, self.forms = shard, list(forms)
        self.version = 0
        """Updates that were made."""
        self.parameters: list[nn.Parameter] = []
        self._rule: Rule | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._sums: list[Tensor | None] = [None] * len(self.forms)
        """The sum for each parameter; None: no worker had a gradient."""
        self._buffers: list[Tensor | None] = [None] * len(self.forms)
        """Memory of sums, which is used again."""
        self._open: Attempt = (-1, (0, 0))
        """What is being added up."""
        self._pushed: dict[int, set[int]] = {}
        """For each worker the numbers of the parameters that it has pushed."""
        self._pieces: dict[int, int] = {}
        """For each worker how many messages those were."""
        self._closed: set[int] = set()
        """Workers that have pushed all they have."""
        self.sealed = False
        """Whether the sum is complete, and the backup has it."""
        self._square: float | None = None
        self.last_square: float | None = 0.0
        """Of the norm of the sum that was applied last; 0 if another holder did that."""
        self.items = Items()
        """Where pushes are applied by themselves."""

    # ------------------------------------------------------------- what it holds

    @property
    def loaded(self) -> bool:
        """Whether it holds parameters."""
        return self._rule is not None

    def load(self, message: Load, tensors: Sequence[Tensor]) -> None:
        """Hold these parameters, and what their optimizer kept."""
        count = len(message.forms)
        parameters = [nn.Parameter(one, requires_grad=False) for one in tensors[:count]]
        optimizer = rules.build(message.rule, parameters)
        rules.give_back(optimizer, parameters, message.held, tensors[count:])
        self.parameters, self._rule, self._optimizer = parameters, message.rule, optimizer
        self.version, self.items.applied = message.version, dict(message.applied)
        self._begin((-1, (0, 0)))

    @property
    def attempt(self) -> Attempt:
        """What is being added up."""
        return self._open

    def whole(self, key: int) -> tuple[Load, list[Tensor]]:
        """All that another holder needs, in its own memory; a sum that is under way is pushed again."""
        assert self._rule is not None
        held, tensors = self.kept()
        parameters = [one.detach().clone() for one in self.parameters]
        message = Load(self.shard, key, self.version, self.forms, self._rule, held, sorted(self.items.applied.items()))
        return message, [*parameters, *(one.clone() for one in tensors)]

    def kept(self) -> tuple[list[Held], list[Tensor]]:
        """What the optimizer keeps."""
        assert self._optimizer is not None
        return rules.kept_by(self._optimizer, {one: number for number, one in enumerate(self.parameters)})

    # ------------------------------------------------------------- sums

    def is_open(self, step: int, attempt: tuple[int, int]) -> bool:
        """Whether this is being added up, from now on if it is newer than what was; False if it is over."""
        wanted = (step, attempt)
        if step < self.version or wanted < self._open:
            return False
        if wanted > self._open:
            self._begin(wanted)
        return True

    def _begin(self, attempt: Attempt) -> None:
        self._open, self.sealed, self._square = attempt, False, None
        self._sums = [None] * len(self.forms)
        self._pushed, self._pieces, self._closed = {}, {}, set()

    def add(self, worker: int, numbers: Sequence[int], gradients: Sequence[Tensor]) -> None:
        """Add gradients of a worker to the open sum; what it has pushed already is left out."""
        pushed = self._pushed.setdefault(worker, set())
        self._pieces[worker] = self._pieces.get(worker, 0) + 1
        for number, gradient in zip(numbers, gradients, strict=True):
            if number in pushed or self.sealed:
                continue
            pushed.add(number)
            if self._sums[number] is not None:
                self._sums[number].add_(gradient)  # type: ignore[union-attr]
                continue
            buffer = self._buffers[number]
            if buffer is None:
                buffer = self._buffers[number] = torch.empty_like(gradient)
            self._sums[number] = buffer.copy_(gradient)

    def close(self, worker: int, pieces: int) -> bool:
        """A worker has pushed all it has of the open sum, in so many messages; False if some of them are not here."""
        if not self.sealed and self._pieces.get(worker, 0) < pieces:
            return False
        self._closed.add(worker)
        return True

    def has(self, workers: Sequence[int]) -> bool:
        """Whether these have all closed the open sum."""
        return self.sealed or self._closed.issuperset(workers)

    def sums(self) -> tuple[list[int], list[Tensor]]:
        """Of those parameters that have a gradient."""
        there = [(number, one) for number, one in enumerate(self._sums) if one is not None]
        return [number for number, _ in there], [one for _, one in there]

    def seal(self, step: int, attempt: tuple[int, int], numbers: Sequence[int], sums: Sequence[Tensor]) -> None:
        """As a backup: take over a complete sum."""
        self._begin((step, attempt))
        for number, one in zip(numbers, sums, strict=True):
            self._sums[number] = one
        self.sealed = True

    def square(self) -> float | None:
        """Of the complete sum's norm; None if it is not finite."""
        if self._square is None:
            self._square = float(norm_of(self.sums()[1])) ** 2
        return self._square if math.isfinite(self._square) else None

    # ------------------------------------------------------------- updates

    def apply(self, message: Apply) -> None:
        """Update by the sealed sum; once for each step."""
        assert self._optimizer is not None and self._rule is not None
        if message.step < self.version:
            return
        assert self.sealed and self._open == (message.step, message.attempt), "an update without its sum"
        self.last_square = self.square()
        rules.set_settings(self._optimizer, self._rule, message.groups)
        for parameter, one in zip(self.parameters, self._sums, strict=True):
            parameter.grad = one if one is None or message.factor == 1.0 else one.mul_(message.factor)
        if self.parameters:
            with applied_as_part(self._optimizer, message.share):
                self._optimizer.step()
        if message.item is not None:
            self.items.applied[message.item] = message.worker
        for parameter in self.parameters:
            parameter.grad = None
        if not self._rule.kind.startswith("torch.optim"):  # it may keep the gradients that it was given
            self._buffers = [None] * len(self.forms)
        self.version = message.step + 1
        self._begin((message.step, message.attempt))
