"""The session: my place in a run, and the few calls that make a training loop a distributed one.

When a peer dies, nothing is raised here: the step in which it happened is void, `step` returns False, and the
iterator yields the same step again, newly shared among the survivors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from cordee.core.events import WarningEvent
from cordee.feed.batch import Batch
from cordee.feed.feeder import Weigh
from cordee.feed.order import Order
from cordee.split.cut import Cut
from cordee.split.find import calling, choose_cut
from cordee.split.named import corrects
from cordee.split.product import sharing
from cordee.split.tensor import TensorPlan, check_found_tokens
from cordee.train.checks import check_loss
from cordee.train.ledger import Committed
from cordee.train.loops import Start
from cordee.train.stepper import Stepper, Wishes


class Session:
    """One worker's side of a run; alone, it is an ordinary training loop."""

    __slots__ = ("_sharing", "_stay", "_stepper")  # so that a name that does not exist cannot be set

    def __init__(self, stepper: Stepper | None = None, *, stay: bool = False) -> None:
        """Made by `session()`; without a `stepper` for one process alone. `stay`: see `Stepper.close`."""
        self._stepper = stepper or Stepper()
        self._stay = stay
        plan = self._stepper.plan
        in_turn = plan.window is not None or plan.sync == "auto"  # workers then compute parts of different steps
        self._sharing = sharing(self._stepper.team, f"with sync={plan.sync} they may be in different steps" * in_turn)

    def __enter__(self) -> Session:
        """Leave the team at the end of the block."""
        self._sharing.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Come to the end together with the others, unless an exception ended the block."""
        self._sharing.__exit__(None, None, None)
        if kind is None:
            self._stepper.close(stay=self._stay)

    @property
    def rank(self) -> int:
        """My place among the workers that are there now; 0 is the one that speaks for all."""
        return self._stepper.team.membership.rank

    @property
    def size(self) -> int:
        """How many workers there are now."""
        return self._stepper.team.membership.size

    @property
    def device(self) -> str:
        """What this worker computes on."""
        return self._stepper.device

    @property
    def last(self) -> Committed | None:
        """The last step that was committed, a [`Committed`](callbacks.md#committed); None before the first."""
        return self._stepper.last

    @property
    def wish(self) -> Wishes:
        """What this worker wishes: `wish.stop = True` ends the loop on all workers after the same step."""
        return self._stepper.wish

    def prepare(
        self, model: nn.Module, *, compile: bool = True, tensor_plan: TensorPlan | None = None, sample: Any = None
    ) -> nn.Module:
        """Make `model` ready: on the device, the same on every worker, BatchNorm over the global batch.

        With `compile=True` in the plan it is compiled too, unless you compile what you compute by yourself. With
        `tensor=N` in the plan, `tensor_plan` says which linear layers are cut; see `Job.tensor_plan`. Without it, give
        a `sample`, on the session's device: the model is called with it a few times (a tuple holds several arguments,
        a dict arguments by name), and what can be cut is found.
        """
        team = self._stepper.team
        if team.slices.size > 1 and sample is not None and not isinstance(tensor_plan, Cut) and corrects(tensor_plan):
            model = model.to(self.device)
            run, sequence = calling(model, sample), self._stepper.plan.sequence
            tensor_plan = choose_cut(model, run, tensor_plan, team.slices.size, sequence=sequence)
        check_found_tokens(tensor_plan, sequence=self._stepper.plan.sequence)
        return self._stepper.prepare(model, compile=compile, tensor_plan=tensor_plan)

    def autocast(self) -> AbstractContextManager[Any]:
        """Compute in the plan's number format: put the forward pass and the loss into it."""
        return self._stepper.precision.autocast()

    def batches(
        self,
        data: Any,
        *,
        batch: int,
        epochs: int | None = 1,
        order: Order | None = None,
        weigh: Weigh | None = None,
        start: Start | None = None,
    ) -> Iterator[Batch]:
        """My share of each global batch, epoch after epoch (`epochs=None`: without end).

        A second loop over the same data goes on with the next epoch. With `start=(epoch, step)` a loop begins there,
        and `epochs` counts from epoch 0 on. The tensors of a batch are reused: clone what you keep. With `accumulate`
        in the plan every micro-batch comes by itself. `weigh` says what a batch weighs if not its samples (tokens, for
        instance); the loss is the mean over that. Ends on all workers after the same step when one wished to stop, or
        Ctrl-C asked for it.
        """
        return self._stepper.batches(data, batch=batch, epochs=epochs, order=order, weigh=weigh, start=start)

    def backward(self, loss: Tensor) -> None:
        """Gradients of my share, weighted so that their sum over all workers is that of the global batch."""
        self._stepper.backward(loss)

    def step(self, optimizer: Optimizer, *, clip: float | None = None) -> bool:
        """Agree on the gradient, update, commit. False: not yet, or void because a peer was lost.

        Not yet: the plan says `accumulate`, and this is not the last micro-batch; or it says `sync=local`, and this is
        not the last batch before a merge. `clip` bounds the norm of the gradient: of the global batch, and with
        `sync=local` of this batch.
        """
        return self._stepper.step(optimizer, clip=clip)

    def agree(self, on: Sequence[Tensor] | nn.Module) -> bool:
        """Add up tensors over all workers, in place. False: a worker was lost; fill them again, with your new share.

        Given a prepared model, make what was prepared equal on all workers, before it is measured or saved. Parameters
        differ with `sync=local` only, running statistics with `batchnorm=replica`: all get their mean, by samples.
        """
        if isinstance(on, nn.Module):
            self._stepper.merge()
            return True
        self._stepper.loops.check_merged("s.agree() was called")
        return self._stepper.team.agree(on)

    def check(self, objective: Callable[[Batch], Any], batch: Batch, *, weigh: Weigh | None = None) -> None:
        """Raise `MixingError` unless `objective(batch)`, a loss, is a mean that shares of the batch add up to."""
        for message in check_loss(objective, batch, self._stepper.models, weigh):
            self._stepper.reporter.tell(WarningEvent(message))


def stepper_of(session: Session) -> Stepper:
    """What is behind a session: for the package itself, and for tests that look inside."""
    return session._stepper
