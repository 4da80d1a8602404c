"""What a loop of one's own may do in one process: go on, look inside, train inside; and what it is refused for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cordee.core.errors import DivergedError, UsageError
from cordee.feed.share import Share
from cordee.train.session import Session, stepper_of
from cordee.train.stepper import Stepper

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 3
SECOND = (X.flip(0), Y)


class Trained:
    """A session alone, with a model, its optimizer, and a step."""

    def __init__(self, model: nn.Module | None = None) -> None:
        torch.manual_seed(0)
        self.session = Session()
        self.model = self.session.prepare(model or nn.Linear(6, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def loss(self, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(batch.x), batch.y)

    def step(self, batch: Any) -> None:
        self.session.backward(self.loss(batch))
        assert self.session.step(self.optimizer)


# ------------------------------------------------------------- epochs


def ids_of(trained: Trained, **more: Any) -> list[list[int]]:
    """The samples of a loop that trains."""
    found = []
    for batch in trained.session.batches((X, Y), batch=10, **more):
        found.append(batch.ids.tolist())
        trained.step(batch)
    return found


def test_a_second_loop_over_the_same_data_goes_on_with_the_next_epoch() -> None:
    wanted = ids_of(Trained(), epochs=4)
    trained = Trained()
    assert [ids for _ in range(4) for ids in ids_of(trained, epochs=1)] == wanted
    assert stepper_of(trained.session).done == 16
    again = Trained()
    assert ids_of(again, epochs=2) + ids_of(again, epochs=2) == wanted
    assert ids_of(again, epochs=4, start=(3, 2)) == wanted[14:], "what is asked for is what comes"
    assert ids_of(again, epochs=1)[0] not in wanted


def test_a_loop_that_was_left_is_followed_by_the_next_epoch() -> None:
    wanted = ids_of(Trained(), epochs=3)
    trained = Trained()
    for number, batch in enumerate(trained.session.batches((X, Y), batch=10, epochs=None)):
        assert batch.ids.tolist() == wanted[number]
        trained.step(batch)
        if number == 5:
            break
    assert ids_of(trained) == wanted[8:]


def test_loops_that_only_look_are_always_the_same() -> None:
    trained = Trained()
    orders = [[batch.ids.tolist() for batch in trained.session.batches(SECOND, batch=7)] for _ in range(2)]
    assert orders[0] == orders[1]
    ids_of(trained)
    assert [batch.ids.tolist() for batch in trained.session.batches(SECOND, batch=7)] == orders[0]


# ------------------------------------------------------------- loops inside loops


def test_a_loop_may_evaluate_within_a_step_of_another() -> None:
    plain, nested = Trained(), Trained()
    ids_of(plain, epochs=2)
    seen = 0
    for batch in nested.session.batches((X, Y), batch=10, epochs=2):
        nested.session.backward(nested.loss(batch))
        with torch.no_grad():
            seen += sum(len(one) for one in nested.session.batches(SECOND, batch=7) if float(nested.loss(one)) > 0)
        assert nested.session.step(nested.optimizer)
    assert seen == 8 * 40 and stepper_of(nested.session).done == 8
    assert torch.equal(plain.model.weight, nested.model.weight)  # type: ignore[arg-type]
    assert stepper_of(plain.session).ledger == stepper_of(nested.session).ledger


def test_a_loop_may_train_within_another_that_does_not() -> None:
    plain, nested = Trained(), Trained()
    for _ in range(4):
        for batch in plain.session.batches(SECOND, batch=20):
            plain.step(batch)
    for _ in nested.session.batches((X, Y), batch=10):
        for batch in nested.session.batches(SECOND, batch=20):
            nested.step(batch)
    assert stepper_of(nested.session).done == 8
    assert torch.equal(plain.model.weight, nested.model.weight)  # type: ignore[arg-type]


def outer_first(trained: Trained, batch: Any) -> None:
    trained.session.backward(trained.loss(batch))
    for one in trained.session.batches(SECOND, batch=20):
        trained.step(one)


def inner_first(trained: Trained, batch: Any) -> None:
    for one in trained.session.batches(SECOND, batch=20):
        trained.step(one)
    trained.step(batch)


@pytest.mark.parametrize("both", [outer_first, inner_first])
def test_two_loops_do_not_train_in_one_step(both: Callable[[Trained, Any], None]) -> None:
    trained = Trained()
    with pytest.raises(UsageError, match=r"inside (this|the) step"):
        for batch in trained.session.batches((X, Y), batch=10):
            both(trained, batch)


def test_two_loops_do_not_take_turns() -> None:
    trained = Trained()
    streams = (trained.session.batches(data, batch=10) for data in ((X, Y), SECOND))
    with pytest.raises(UsageError, match="two loops over batches"):
        for one, _ in zip(*streams, strict=True):
            trained.step(one)


# ------------------------------------------------------------- gradients


def clip_by_norm(trained: Trained, batch: Any) -> None:
    trained.session.backward(trained.loss(batch))
    nn.utils.clip_grad_norm_(trained.model.parameters(), 1.0)
    trained.session.step(trained.optimizer)


def clip_by_value(trained: Trained, batch: Any) -> None:
    trained.session.backward(trained.loss(batch))
    nn.utils.clip_grad_value_(trained.model.parameters(), 0.1)
    trained.session.step(trained.optimizer)


def plain_before(trained: Trained, batch: Any) -> None:
    trained.loss(batch).backward()  # type: ignore[no-untyped-call]
    trained.step(batch)


def plain_after(trained: Trained, batch: Any) -> None:
    trained.session.backward(trained.loss(batch))
    trained.loss(batch).backward()  # type: ignore[no-untyped-call]
    trained.session.step(trained.optimizer)


def replaced(trained: Trained, batch: Any) -> None:
    trained.session.backward(trained.loss(batch))
    for parameter in trained.model.parameters():
        parameter.grad = 2 * parameter.grad  # type: ignore[operator]
    trained.session.step(trained.optimizer)


@pytest.mark.parametrize("late", [0, 3])
@pytest.mark.parametrize("wrong", [clip_by_norm, clip_by_value, plain_before, plain_after, replaced])
def test_gradients_that_others_wrote_to_are_refused(wrong: Callable[[Trained, Any], None], late: int) -> None:
    trained = Trained()
    with pytest.raises(UsageError, match=r"s\.step\(optimizer, clip=1\.0\)"):
        for number, batch in enumerate(trained.session.batches((X, Y), batch=10)):
            (wrong if number >= late else Trained.step)(trained, batch)
    assert stepper_of(trained.session).done == late


def test_what_begins_late_is_found_later() -> None:
    trained = Trained()
    with pytest.raises(UsageError, match="clip_grad_norm_"):
        for number, batch in enumerate(trained.session.batches((X, Y), batch=10, epochs=30)):
            (clip_by_norm if number >= 40 else Trained.step)(trained, batch)
    assert stepper_of(trained.session).done < 100


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_are_dropped_are_nobodys(to_none: bool) -> None:
    """As a GAN drops what its second pass leaves in the critic."""
    trained = Trained()
    for batch in trained.session.batches((X, Y), batch=10):
        trained.optimizer.zero_grad(set_to_none=to_none)
        trained.session.backward(trained.loss(batch))
        trained.optimizer.zero_grad(set_to_none=to_none)
        trained.step(batch)
    assert stepper_of(trained.session).done == 4


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("zeroed", [True, False])
def test_parameters_that_move_between_two_passes_are_refused(counted: bool, zeroed: bool) -> None:
    """As SAM moves them, by the gradient of a share."""
    trained = Trained()
    with pytest.raises(UsageError, match="as SAM changes them"):
        for batch in trained.session.batches((X, Y), batch=10):
            trained.session.backward(trained.loss(batch))
            with torch.no_grad():
                for parameter in trained.model.parameters():
                    assert parameter.grad is not None
                    (parameter if counted else parameter.data).add_(parameter.grad, alpha=0.05)
            if zeroed:
                trained.optimizer.zero_grad()
            trained.step(batch)
    assert stepper_of(trained.session).done == 0


def test_parameters_may_be_changed_after_their_update() -> None:
    """As a WGAN clamps its critic."""
    trained = Trained()
    for batch in trained.session.batches((X, Y), batch=10):
        trained.step(batch)
        with torch.no_grad():
            for parameter in trained.model.parameters():
                parameter.clamp_(-0.1, 0.1)
    assert stepper_of(trained.session).done == 4


# ------------------------------------------------------------- numbers


class Rooted(nn.Module):
    """The root of zero: finite, with an infinite slope, which becomes NaN at a zero."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(x) + (self.scale**2).sqrt()
        return out


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_gradient_that_is_not_finite_is_named(clip: float | None) -> None:
    trained = Trained(Rooted())
    before = [one.detach().clone() for one in trained.model.parameters()]
    with pytest.raises(DivergedError, match=r"step 1 \(epoch 1\) is not finite, though the loss is: scale;"):
        for batch in trained.session.batches((X, Y), batch=10):
            trained.session.backward(trained.loss(batch))
            trained.session.step(trained.optimizer, clip=clip)
    assert all(map(torch.equal, before, trained.model.parameters()))


def test_norm_and_learning_rate_are_those_of_the_step() -> None:
    trained = Trained()
    for batch in trained.session.batches((X, Y), batch=10):
        wanted = torch.autograd.grad(trained.loss(batch), list(trained.model.parameters()))
        trained.optimizer.param_groups[0]["lr"] = rate = 0.1 / (batch.step + 1)
        trained.session.backward(trained.loss(batch))
        assert trained.session.step(trained.optimizer, clip=1e-3) and trained.session.last is not None
        norm = float(torch.cat([one.flatten() for one in wanted]).norm())
        assert trained.session.last.grad_norm == pytest.approx(norm, rel=1e-5)
        assert trained.session.last.lr == rate


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_is_a_number_of_at_least_zero(weight: float) -> None:
    trained = Trained()
    with pytest.raises(UsageError, match=r"weigh says .* for a batch of 10 samples \(epoch 1, step 1\)"):
        for batch in trained.session.batches((X, Y), batch=10, weigh=lambda batch: weight):
            trained.step(batch)


# ------------------------------------------------------------- parameters outside of models, draws


def test_parameters_of_a_model_that_was_never_prepared_are_refused() -> None:
    trained, other = Trained(), nn.Linear(3, 3)
    optimizer = torch.optim.SGD([*trained.model.parameters(), *other.parameters()], lr=0.1)
    with pytest.raises(UsageError, match=r"a Linear that was never prepared.*s\.prepare\(model\)"):
        for batch in trained.session.batches((X, Y), batch=10):
            trained.session.backward(nn.functional.cross_entropy(other(trained.model(batch.x)), batch.y))
            trained.session.step(optimizer)


def drawn(start: tuple[int, int] = (0, 0)) -> list[tuple[float, float, float]]:
    """What each step draws from the three generators."""
    session = Session(Stepper(seed=5))
    return [
        (random.random(), float(np.random.rand()), float(torch.rand(())))
        for _ in session.batches((X, Y), batch=10, epochs=2, start=start)
    ]


def test_all_generators_begin_anew_with_each_step() -> None:
    whole = drawn()
    random.seed(99)
    np.random.seed(99)
    torch.manual_seed(99)
    assert drawn((1, 1)) == whole[5:]
    assert len(set(whole)) == len(whole)


class Noisy(torch.utils.data.Dataset[Any]):
    """Draws from NumPy's generator, as many transforms do, and takes its time."""

    fingerprint = "noisy"

    def __len__(self) -> int:
        return 40

    def __getitem__(self, place: int) -> Any:
        time.sleep(0.0002)  # slow enough to be read ahead
        return X[place] + float(np.random.normal()), Y[place]


@pytest.mark.parametrize("body", [False, True])
def test_draws_of_samples_and_of_the_loop_do_not_mix(body: bool) -> None:
    def run(start: tuple[int, int]) -> list[Any]:
        found = []
        for batch in Session(Stepper(seed=5)).batches(Noisy(), batch=10, epochs=5, start=start):
            time.sleep(0.001)
            drawn = float(np.random.rand()) if body else 0.0
            time.sleep(0.001)
            found.append((batch.x.double().sum().item(), drawn, float(np.random.rand()) if body else 0.0))
        return found

    whole = run((0, 0))
    assert len(set(whole)) == 20
    assert run((2, 1)) == whole[9:]


def test_a_loop_inside_is_cut_as_the_step_around_it_after_shares_have_changed_twice() -> None:
    trained, seen = Trained(), []
    loops = stepper_of(trained.session).loops
    for batch in trained.session.batches((X, Y), batch=10, epochs=4):
        trained.step(batch)
        number = 4 * batch.epoch + batch.step
        if number in (2, 7):
            loops.cut(loops.open[0], Share("proportional", (1.0 + number,)), number + 2)
        inside = 0
        for inner in trained.session.batches((X, Y), batch=10, epochs=1, start=(0, 0)):
            inside += len(inner)
            share = loops.open[1].feeder.shares.at(0)
        assert inside == 40
        seen.append(share.proportions)
    assert seen == 4 * [()] + 5 * [(3.0,)] + 7 * [(8.0,)]
    assert loops.shares is None
