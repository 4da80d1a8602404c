"""State by name: what is captured comes back bit for bit, and what does not fit is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim import lr_scheduler as lr

from cordee.core.errors import CheckpointError
from cordee.state.naming import Snapshot, capture, fingerprint, load_weights, restore
from cordee.state.plain import decode, encode

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


class Tied(nn.Module):
    """Embedding and output share one weight; one buffer is kept, one is not."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, width)
        self.norm = nn.BatchNorm1d(width)
        self.out = nn.Linear(width, 6, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("scratch", torch.ones(2), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.embed(ids)))


def train(model: nn.Module, optimizer: Optimizer, steps: int, schedule: Any = None) -> list[float]:
    losses = []
    for step in range(steps):
        ids = torch.arange(step, step + 5) % 6

        def closure(ids: torch.Tensor = ids) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(ids), (ids + 1) % 6)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
        if schedule is not None:
            schedule.step()
    return losses


OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01, amsgrad=True),
    "tensor-lr": lambda params: torch.optim.Adam(params, lr=torch.tensor(0.01)),
    "fused": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    "lbfgs": lambda params: torch.optim.LBFGS(params, lr=0.1, max_iter=3, history_size=4),
    "rprop": lambda params: torch.optim.Rprop(params, lr=0.01),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_goes_on_exactly_after_restore(kind: str) -> None:
    torch.manual_seed(0)
    model = Tied().double()
    optimizer = OPTIMIZERS[kind](model.parameters())
    train(model, optimizer, 4)
    snapshot = capture(model, {"main": optimizer})
    json.dumps(snapshot.meta, allow_nan=False)
    expected = train(model, optimizer, 3)

    torch.manual_seed(1)
    other = Tied().double()
    fresh = OPTIMIZERS[kind](other.parameters())
    restore(snapshot, other, {"main": fresh})
    assert train(other, fresh, 3) == expected
    assert fingerprint(other.state_dict()) == fingerprint(model.state_dict())


SCHEDULES: dict[str, Callable[[Optimizer], Any]] = {
    "multistep": lambda opt: lr.MultiStepLR(opt, [2, 2, 5], gamma=0.5),
    "cosine": lambda opt: lr.CosineAnnealingLR(opt, 9),
    "onecycle": lambda opt: lr.OneCycleLR(opt, 0.1, total_steps=20),
    "lambda": lambda opt: lr.LambdaLR(opt, lambda step: 1 / (step + 1)),
    "sequence": lambda opt: lr.SequentialLR(opt, [lr.LinearLR(opt, 0.1), lr.ExponentialLR(opt, 0.9)], milestones=[3]),
}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_schedule_goes_on(kind: str) -> None:
    def build() -> tuple[nn.Module, Optimizer, Any]:
        torch.manual_seed(0)
        model = Tied()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, optimizer, SCHEDULES[kind](optimizer)

    model, optimizer, schedule = build()
    train(model, optimizer, 4, schedule)
    snapshot = capture(model, {"main": optimizer}, {"main": schedule})
    meta = json.loads(json.dumps(snapshot.meta, allow_nan=False))
    expected = train(model, optimizer, 4, schedule)

    other, fresh, again = build()
    restore(Snapshot(snapshot.tensors, meta), other, {"main": fresh}, {"main": again})
    assert train(other, fresh, 4, again) == expected
    assert fresh.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


def test_plateau_holds_infinity() -> None:
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = lr.ReduceLROnPlateau(optimizer)
    snapshot = capture(model, {"main": optimizer}, {"main": schedule})
    meta = json.loads(json.dumps(snapshot.meta, allow_nan=False))
    schedule.step(1.0)
    restore(Snapshot(snapshot.tensors, meta), model, {"main": optimizer}, {"main": schedule})
    assert schedule.best == float("inf")


def test_names_are_logical_and_tied_weights_kept_once() -> None:
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 1)
    snapshot = capture(model, {"main": optimizer})
    assert {"model.embed.weight", "model.norm.running_mean", "optim.main.embed.weight.exp_avg"} <= set(snapshot.tensors)
    assert "model.out.weight" not in snapshot.tensors
    assert "model.scratch" not in snapshot.tensors
    assert snapshot.aliases == {"out.weight": "embed.weight"}


def test_untied_model_takes_tied_weights_but_not_the_other_way() -> None:
    tied, loose = Tied(), Tied()
    loose.out.weight = nn.Parameter(torch.zeros(6, 4))
    with pytest.raises(CheckpointError, match=r"embed\.weight and out\.weight are one tensor"):
        restore(capture(loose), tied)
    restore(capture(tied), loose)
    assert torch.equal(loose.out.weight, tied.embed.weight)


def test_snapshot_does_not_change_when_training_goes_on() -> None:
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(model, optimizer, 2)
    snapshot = capture(model, {"main": optimizer})
    before = {name: tensor.clone() for name, tensor in snapshot.tensors.items()}
    restore(snapshot, model, {"main": optimizer})
    train(model, optimizer, 2)
    assert all(torch.equal(before[name], tensor) for name, tensor in snapshot.tensors.items())
    assert not torch.equal(before["model.embed.weight"], model.embed.weight)


def test_fp32_state_of_a_bf16_parameter_is_not_rounded() -> None:
    model = nn.Linear(3, 2).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    master = torch.randn(2, 3)
    optimizer.state[model.weight]["master"] = master
    snapshot = capture(model, {"main": optimizer})
    assert snapshot.tensors["model.weight"].dtype == torch.bfloat16
    fresh = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    restore(snapshot, model, {"main": fresh})
    assert torch.equal(fresh.state[model.weight]["master"], master)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: Tied(5), r"embed\.weight is \(6, 4\) of torch\.float32 in the file, but \(6, 5\)"),
        (lambda: Tied().double(), r"but \(6, 4\) of torch\.float64"),
        (lambda: nn.Linear(2, 2), r"missing in the file bias, weight; in the file but unknown here embed\.weight"),
    ],
)
def test_another_model_is_refused_unchanged(other: Callable[[], nn.Module], message: str) -> None:
    model = other()
    before = fingerprint(model.state_dict())
    with pytest.raises(CheckpointError, match=message):
        restore(capture(Tied()), model)
    assert fingerprint(model.state_dict()) == before


def test_another_optimizer_is_refused_before_the_model_changes() -> None:
    model = Tied()
    snapshot = capture(model, {"main": torch.optim.AdamW(model.parameters())})
    other = Tied()
    before = fingerprint(other.state_dict())
    with pytest.raises(CheckpointError, match="was a AdamW in the checkpoint and is a SGD now"):
        restore(snapshot, other, {"main": torch.optim.SGD(other.parameters(), lr=0.1)})
    groups = [{"params": [other.embed.weight]}, {"params": list(other.norm.parameters())}]
    with pytest.raises(CheckpointError, match=r"groups of \[3\] in the checkpoint and has them in groups of \[1, 2\]"):
        restore(snapshot, other, {"main": torch.optim.AdamW(groups)})
    with pytest.raises(CheckpointError, match="optimizers do not fit: missing in the file critic"):
        restore(snapshot, other, {"critic": torch.optim.AdamW(other.parameters())})
    assert fingerprint(other.state_dict()) == before


def test_parameter_outside_the_model_is_refused() -> None:
    model = Tied()
    stray = nn.Parameter(torch.zeros(7))
    with pytest.raises(CheckpointError, match=r"shape \(7,\) that is not part of the model"):
        capture(model, {"main": torch.optim.SGD([*model.parameters(), stray], lr=0.1)})


def test_what_json_cannot_hold_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"schedule\.main\.f is a function"):
        encode({"f": train}, "schedule.main", {})


class Laid(nn.Module):
    """A weight whose memory is not row by row: channels-last, or transposed."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        weight = torch.randn(3, 8).t() if transposed else torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
        self.weight = nn.Parameter(weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.tanh(ids.double()[:, None] * self.weight.flatten().square()[:6])


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("kind", ["fused", "sgd-fused", "sgd"])
def test_state_comes_back_in_the_layout_of_its_parameter(kind: str, transposed: bool) -> None:
    makes: dict[str, MakeOptimizer] = {
        **OPTIMIZERS,
        "sgd-fused": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, fused=True),
    }
    torch.manual_seed(0)
    model = Laid(transposed).double()
    optimizer = makes[kind](model.parameters())
    train(model, optimizer, 3)
    snapshot = capture(model, {"main": optimizer})
    expected = train(model, optimizer, 3)

    other = Laid(transposed).double()
    fresh = makes[kind](other.parameters())
    restore(snapshot, other, {"main": fresh})
    kept = [value for value in fresh.state[other.weight].values() if value.shape == other.weight.shape]
    assert kept and all(value.stride() == other.weight.stride() != value.contiguous().stride() for value in kept)
    assert train(other, fresh, 3) == expected
    assert torch.equal(other.weight, model.weight)


def test_plain_values_come_back_as_they_were() -> None:
    value = {
        "a": [1, 2.5, (True, None, "x")],
        3: {"$tensor": "just a dict"},
        "3": torch.arange(3),
        "nan": [float("-inf")],
        (1, 2): {"deep": torch.ones(())},
        "empty": {},
    }
    tensors: dict[str, torch.Tensor] = {}
    back = decode(json.loads(json.dumps(encode(value, "v", tensors), allow_nan=False)), tensors)
    assert torch.equal(back.pop("3"), value.pop("3"))
    assert back.pop((1, 2))["deep"] == value.pop((1, 2))["deep"]
    assert back == value


def test_extra_carries_position_and_random_state() -> None:
    state = torch.get_rng_state()
    snapshot = capture(nn.Linear(1, 1)).with_extra(position={"epoch": 1, "step": 7}).with_extra(random=state)
    assert snapshot.extra["position"] == {"epoch": 1, "step": 7}
    assert torch.equal(snapshot.extra["random"], state)


def test_sparse_tensor_is_refused_and_channels_last_is_not() -> None:
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    snapshot = capture(model)
    assert snapshot.tensors["model.weight"].is_contiguous()
    load_weights(model, snapshot.weights())
    model.register_buffer("holes", torch.eye(3).to_sparse())
    with pytest.raises(CheckpointError, match=r"model\.holes is a torch\.sparse_coo tensor"):
        capture(model)


def test_fingerprint_sees_a_single_bit() -> None:
    weights = {"a": torch.zeros(3), "b": torch.zeros(0), "c": torch.tensor(True)}
    before = fingerprint(weights)
    assert before == fingerprint(dict(reversed(weights.items())))
    weights["a"][1] = -0.0
    assert fingerprint(weights) != before
