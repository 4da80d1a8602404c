"""A pass of the preflight: what it costs, what it leaves behind, and what holds around it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cordee
from cordee.core.errors import MixingError, UsageError
from cordee.diagnose.preflight import check, passes
from cordee.diagnose.preflight.check import check_batch, preflight
from cordee.feed.batch import Batch
from cordee.group.team import Team
from cordee.train.checks import subject_of
from cordee.train.job import Job, Resolved

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 3
cross_entropy = nn.functional.cross_entropy


def look(objective: Any, model: nn.Module | None = None, data: Any = (X, Y), **fields: Any) -> list[str]:
    made = model if model is not None else nn.Linear(6, 3)
    job = Job(model=lambda: made, objective=objective, optimizer=torch.optim.SGD, data=data, **fields)
    return preflight(subject_of(job, made), job.data.train, lambda count: np.arange(min(count, len(data[0]))))


def plain(model: nn.Module, batch: Any) -> Tensor:
    return cross_entropy(model(batch.x), batch.y)


def test_no_more_than_one_gradient_is_held_at_a_time() -> None:
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(8)), nn.Linear(6, 3))
    held = []
    for one in model.parameters():
        one.register_post_accumulate_grad_hook(
            lambda _: held.append(sum(other.grad is not None for other in model.parameters()))
        )
    look(plain, model)
    assert max(held) == 1


def test_gradients_that_were_there_are_given_back() -> None:
    model = nn.Linear(6, 3)
    model(X).sum().backward()
    before = [one.grad for one in model.parameters()]
    kept = [one.clone() for one in before if one is not None]
    look(plain, model)
    assert all(one.grad is other for one, other in zip(model.parameters(), before, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(kept, before, strict=True) if other is not None)


def test_generators_and_state_of_the_objective_are_put_back() -> None:
    generators: list[Any] = [torch.Generator(), np.random.default_rng(3), np.random.RandomState(3), random.Random(3)]
    drawn = [generators[0].get_state(), *(repr(one.bit_generator.state) for one in generators[1:2])]
    log: list[float] = []
    table = np.zeros(3)
    steps = 0

    def objective(model: nn.Module, batch: Any) -> Tensor:
        nonlocal steps
        steps += 1
        table[0] += 1
        noise = torch.randn(batch.x.shape, generator=generators[0]) + float(generators[1].random())
        noise = noise * float(generators[2].rand()) * generators[3].random()
        loss = cross_entropy(model(batch.x + 0.1 * noise), batch.y)
        log.append(float(loss))
        return loss

    assert not look(objective)
    assert steps == 0 and not log and not table.any()
    assert torch.equal(generators[0].get_state(), drawn[0]) and repr(generators[1].bit_generator.state) == drawn[1]


class Centred(nn.Linear):
    """Keeps a moving centre of its outputs, in a buffer that no state dict holds."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.register_buffer("centre", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        shown = out - self.centre.clone()
        with torch.no_grad():
            self.centre.mul_(0.9).add_(out.mean(0), alpha=0.1)
        return shown


def test_a_buffer_whose_update_is_a_mean_is_accepted_and_put_back() -> None:
    model = Centred()
    assert look(plain, model) == []
    assert not model.centre.any()


def test_a_buffer_of_a_second_model_is_known_as_one() -> None:
    first, second, batch = nn.Linear(6, 3), Centred(), Batch(np.arange(40), (X, Y))
    models = [first, second]
    assert check_batch(lambda part: cross_entropy(first(part.x) + second(part.x), part.y), batch, models) == []

    def add_up(module: Any, args: Any, out: Tensor) -> None:
        module.centre.add_(out.detach().sum(0))

    second.register_forward_hook(add_up)
    with pytest.raises(MixingError, match=r"the buffer 'model 1\.centre'"):
        check_batch(lambda part: cross_entropy(first(part.x) + second(part.x), part.y), batch, models)


def test_an_objective_that_gathers_mixes_by_declaration() -> None:
    def objective(model: nn.Module, batch: Any, *, gathers: bool = True) -> Tensor:
        out = cordee.gather(model(batch.x)) if gathers else model(batch.x)
        return cross_entropy(out @ out.T, torch.arange(len(out)))

    assert not look(objective)
    with pytest.raises(MixingError, match=r"cordee\.gather"):
        look(lambda model, batch: objective(model, batch, gathers=False))


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_settings_of_the_gpu_come_back(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "uses_gpus", lambda: True)
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    torch.set_float32_matmul_precision(precision)
    try:
        before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic
        with passes.exact_kernels():
            assert (cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic) == (False, False, True)
        assert (cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic) == before
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
def test_little_data_is_enough(count: int) -> None:
    assert not look(plain, data=(X[:count], Y[:count]))
    if count > 1:
        with pytest.raises(MixingError):
            look(lambda model, batch: plain(model, batch) * len(batch), data=(X[:count], Y[:count]))


class Noted(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Remembers which samples were read."""

    def __init__(self) -> None:
        self.read: set[int] = set()

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.read.add(index)
        return X[index], Y[index]


def test_no_more_samples_are_read_than_needed() -> None:
    data = Noted()
    job = Job(model=lambda: nn.Linear(6, 3), loss=cross_entropy, optimizer=torch.optim.SGD, data=data)
    job.data.train.gather(np.arange(2))  # a data set is looked through once for draws
    data.read.clear()
    preflight(subject_of(job, job.make_model()), job.data.train, lambda count: np.arange(count), largest=64)
    assert data.read == set(range(16))


def weighted(model: nn.Module, batch: Any, back: float) -> Tensor:
    """Class weights; with `back` the loss is multiplied by what it was divided by."""
    weights = torch.tensor([1.0, 5.0, 9.0])
    loss = cross_entropy(model(batch.x), batch.y, weight=weights)
    return loss * weights[batch.y].sum() / len(batch) if back else loss


def test_class_weights_in_data_that_cannot_be_looked_through() -> None:
    """Refused where no sample shows what they do; accepted where they show that it is made good."""
    model = nn.Linear(6, 3)
    alike, mixed = Batch(np.arange(40), (X, torch.ones_like(Y))), Batch(np.arange(40), (X, Y))
    with pytest.raises(MixingError, match=r"weights\[batch\.y\]"):
        check_batch(lambda part: weighted(model, part, back=False), alike, [model])
    assert check_batch(lambda part: weighted(model, part, back=True), mixed, [model]) == []


def test_lazy_modules_take_their_shapes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):  # the second time the verdict is remembered
        settings: dict[str, Any] = {"loss": cross_entropy, "optimizer": torch.optim.SGD, "data": (X, Y)}
        job = Job(model=lambda: nn.Sequential(nn.LazyLinear(3)), **settings)
        model, order = job.make_model(), job.order(Resolved(32, 1.0))
        check.materialise(subject_of(job, model), job.data.train, order, "cpu")
        assert check.before_training(subject_of(job, model), job.data.train, order, Team(), "cpu") == []
        assert [tuple(one.shape) for one in model.parameters()] == [(3, 6), (3,)]


# ------------------------------------------------------------- a batch in hand


def test_a_batch_in_hand_is_checked() -> None:
    model, batch = nn.Linear(6, 3), Batch(np.arange(40), (X, Y))
    assert check_batch(lambda part: plain(model, part), batch, [model]) == []
    with pytest.raises(MixingError, match="sum, not a mean"):
        check_batch(lambda part: plain(model, part) * len(part), batch, [model])
    holes = Batch(np.arange(40), (X, torch.where(Y == 1, -100, Y)))
    with pytest.raises(MixingError, match=r"\(batch\.y != -100\)\.sum\(\)"):
        check_batch(lambda part: plain(model, part), holes, [model])
    assert check_batch(lambda part: plain(model, part), holes, [model], lambda part: (part.y != -100).sum()) == []


def test_what_cannot_be_checked_in_hand_is_refused_by_name() -> None:
    model = nn.Linear(6, 3)
    with pytest.raises(UsageError, match=r"prepare\(model\)"):
        check_batch(lambda part: plain(model, part), Batch(np.arange(40), (X, Y)), [])
    with pytest.raises(UsageError, match="first dimension"):
        check_batch(lambda part: plain(model, part), Batch(np.arange(40), (X, Y[:7])), [model])
