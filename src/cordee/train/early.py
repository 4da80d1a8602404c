"""Memory before the first step: a model that cannot fit is refused before it is put on a device, and no start crashes.

`fitting.py` measures more, but only when the model is placed: by then it was whole on the device, with passes over it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from cordee.core.errors import CordeeError, PlanError
from cordee.diagnose.room import Needs, Room, Sizes, estimate, in_words, judge, remedies
from cordee.feed.order import Order
from cordee.train.fitting import NOTABLE, room_of, state_bytes
from cordee.train.job import Job
from cordee.train.stepper import Stepper

ALLOCATORS = ("DefaultCPUAllocator: can't allocate", "CUDA out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""By these words in errors a lack of memory is known, where it has no type of its own."""
MOST_SHOWN = 160
"""Characters of such an error that are shown."""


class EarlyMemory:
    """What a model needs at the least, by its parameters as the job makes them on the CPU."""

    def __init__(self, job: Job, stepper: Stepper, order: Order, model: nn.Module) -> None:
        """`model` is whole; lazy modules count as nothing, because they have no shape yet."""
        self._job, self._stepper, self._order, self._model = job, stepper, order, model
        shaped = [one for one in model.parameters() if not is_lazy(one)]
        self._whole = sum(one.nbytes for one in shaped)
        self._like = [nn.Parameter(torch.empty_like(one, device="meta"), one.requires_grad) for one in shaped]
        """Without memory: an optimizer that is made for these leaves the model alone."""

    def check(self) -> None:
        """Raise `PlanError` if the model cannot fit, whole at the start or in its parts; local."""
        plan, room = self._stepper.plan, room_of(self._model, self._stepper.device)
        if self._whole > room.device:
            where = "GPU" if room.on_gpu else "host"
            raise PlanError(
                f"plan {plan} does not fit: at its start a worker holds the whole model, also where the plan cuts it "
                f"afterwards: {in_words(self._whole)} of {where} memory, where {in_words(room.device)} are free for "
                f"it. What needs less: fewer workers per {where}, or a smaller model"
            )
        # Ten times the parameters cover what every optimizer of torch keeps. Under pipeline= a stage may be small.
        if self._whole > NOTABLE * room.device and plan.pipeline == 1:
            verdict = judge(self._needs(), room, plan)
            if verdict.refusal:
                raise PlanError(verdict.refusal)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """In here a lack of memory is an error of the plan, which says what to change."""
        try:
            yield
        except (RuntimeError, MemoryError, CordeeError) as error:
            cause = _lack_of_memory(error)
            if cause is None:
                raise
            plan, needs = self._stepper.plan, self._needs()
            room = Room(0, 0, on_gpu=self._stepper.device != "cpu")
            raise PlanError(
                f"plan {plan} does not fit: memory ran out before the first step "
                f"({shorten(str(cause), MOST_SHOWN, placeholder=' ...')}). At the least a worker needs {needs}; until "
                f"the model is placed, it holds all of it ({in_words(self._whole)}) and computes a few samples with "
                f"it. {remedies(needs, room, plan, certain=False)}"
            ) from error

    def _needs(self) -> Needs:
        """At the least, of a worker that holds its part."""
        plan, team = self._stepper.plan, self._stepper.team
        over = team.lines.shape.size
        trained = sum(one.nbytes for one in self._like if one.requires_grad)
        state = self._state()
        sizes = Sizes(self._whole // over, trained // over, None if state is None else state // over)
        return estimate(sizes, plan, batch=self._order.batch, replicas=team.shares)

    def _state(self) -> int | None:
        """Of the optimizer, if it can be made without the model."""
        try:
            return state_bytes(self._job.optimizer(self._like))
        except Exception:  # it is the user's; what is wrong with it is told when it is made for the model
            return None


def _lack_of_memory(error: BaseException | None) -> BaseException | None:
    """The first error among the causes of this one that tells of a lack of memory, if there is one."""
    cause = None
    while error is not None:
        memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
        cause = error if memory or any(word in str(error) for word in ALLOCATORS) else cause
        error = error.__cause__
    return cause
