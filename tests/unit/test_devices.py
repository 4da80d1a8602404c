"""Fused updates, layout, formats: what is chosen when, and that it changes rounding only."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from cordee.core.errors import DivergedError, PlanError
from cordee.core.plan import Plan
from cordee.group.transport import nccl
from cordee.train.compiling import replays
from cordee.train.devices import fuse, lay_out
from cordee.train.precision import FIRST_SCALE, GROW_AFTER, Precision, widened
from cordee.train.session import Session, stepper_of
from cordee.train.stepper import Stepper

KINDS = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-2, weight_decay=1e-3, amsgrad=True),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_fused_update_is_the_same_update(kind: str) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(7, 5, dtype=torch.float64)
    fused = copy.deepcopy(plain)
    optimizers = [KINDS[kind](plain.parameters()), KINDS[kind](fused.parameters())]
    assert fuse(optimizers[1], fused) and optimizers[1].param_groups[0]["fused"] is True
    for _ in range(20):
        x = torch.randn(3, 7, dtype=torch.float64)
        for model, optimizer in zip((plain, fused), optimizers, strict=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(plain.weight, fused.weight, rtol=1e-12, atol=1e-12)


def test_what_the_user_chose_stays() -> None:
    model = nn.Linear(2, 2)
    for chosen in ({"foreach": True}, {"foreach": False}, {"fused": False}, {"differentiable": True}):
        optimizer = torch.optim.AdamW(model.parameters(), **chosen)
        assert not fuse(optimizer, model) and not optimizer.param_groups[0]["fused"], chosen
    assert not fuse(torch.optim.RMSprop(model.parameters()), model)

    class Own(torch.optim.AdamW):
        """May do anything."""

    assert not fuse(Own(model.parameters()), model)


class Cut(nn.Module):
    """A matrix, cut to fewer columns, or transposed."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8).t() if transposed else torch.randn(5, 32)[:, :12])


def test_a_kernel_is_only_given_what_it_can_walk_through() -> None:
    for kind in KINDS.values():
        for model, expected in (
            (Cut(transposed=True), True),
            (Cut(transposed=False), False),
            (nn.Embedding(5, 3), True),
            (nn.Sequential(nn.Linear(2, 2), nn.Embedding(5, 3, sparse=True)), False),
            (nn.EmbeddingBag(5, 3, sparse=True, mode="sum"), False),
        ):
            optimizer = kind(model.parameters())
            assert fuse(optimizer, model) is expected and bool(optimizer.param_groups[0]["fused"]) is expected


def test_groups_added_later_are_fused_too() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(first.parameters())
    fuse(optimizer, first)
    optimizer.add_param_group({"params": list(second.parameters())})
    assert [group["fused"] for group in optimizer.param_groups] == [True, True]


def test_channels_last_where_the_plan_says_so_and_by_itself_only_on_gpus() -> None:
    def strides(layout: str) -> tuple[int, ...]:
        weight = lay_out(nn.Sequential(nn.Conv2d(3, 4, 3)), layout)[0].weight
        assert isinstance(weight, torch.Tensor)
        return weight.stride()

    assert strides("contiguous") == strides("auto") == (27, 9, 3, 1)
    assert strides("channels_last") == (27, 1, 9, 3)


def test_the_scale_of_the_loss_follows_the_gradient() -> None:
    precision = Precision("fp16", "cpu")
    assert precision.scale == FIRST_SCALE
    after(precision, False)
    assert precision.scale == FIRST_SCALE / 2
    for _ in range(GROW_AFTER):
        after(precision, True)
    assert precision.scale == FIRST_SCALE
    kept = precision.to_dict()
    later = Precision("fp16", "cpu")
    after(later, False)
    later.take_up(kept)
    assert later.to_dict() == kept
    with pytest.raises(DivergedError, match="fp16 at any scale"):
        for _ in range(60):
            after(precision, False)
    other = Precision("bf16", "cpu")
    other.take_up(kept)
    after(other, False)
    assert other.scale == 1.0


def after(precision: Precision, *finite: bool) -> None:
    """A step with these updates, and the beginning of the next."""
    for one in finite:
        precision.saw(one)
    precision.begin_step()


def test_all_updates_of_a_step_have_one_scale() -> None:
    precision = Precision("fp16", "cpu")
    for finite in (True, False, False, True):
        precision.saw(finite)
        assert precision.scale == FIRST_SCALE
    assert precision.to_dict()["scale"] == FIRST_SCALE / 2  # a checkpoint goes on with the next step
    precision.begin_step()
    assert precision.scale == FIRST_SCALE / 2
    for _ in range(GROW_AFTER - 1):
        after(precision, True, True)
    assert precision.scale == FIRST_SCALE / 2
    after(precision, True, True)
    assert precision.scale == FIRST_SCALE


def test_an_overflow_of_one_optimizer_leaves_the_update_of_another_right() -> None:
    """Both backward passes come before the two updates, as for an actor and a critic."""
    torch.manual_seed(0)
    moves, scales = [], []
    with Session(Stepper(plan=Plan.parse("precision=fp16"))) as s:
        one, other = (s.prepare(nn.Linear(4, 1, bias=False)) for _ in range(2))
        optimizers = [torch.optim.SGD(one.parameters(), lr=0.0), torch.optim.SGD(other.parameters(), lr=1.0)]
        for batch in s.batches((torch.ones(8, 4), torch.zeros(8)), batch=8, epochs=4):
            before = other.weight.detach().clone()
            scales.append(stepper_of(s).precision.scale)
            with s.autocast():
                factors = (50.0 if batch.epoch == 1 else 1e-3, 0.01)
                losses = [(model(batch.x) * by).float().mean() for model, by in zip((one, other), factors, strict=True)]
            for loss in losses:
                s.backward(loss)
            for optimizer in optimizers:
                s.step(optimizer)
            moves.append((before - other.weight).detach())
    assert stepper_of(s).precision.skipped == 1
    assert scales == [FIRST_SCALE, FIRST_SCALE, FIRST_SCALE / 2, FIRST_SCALE / 2]
    torch.testing.assert_close(torch.cat(moves), torch.full((4, 4), 0.01), rtol=1e-2, atol=0)


def test_outputs_in_half_precision_are_widened_for_metrics() -> None:
    given = {"a": torch.ones(2, dtype=torch.bfloat16), "b": (torch.ones(2, dtype=torch.int64), torch.ones(1).half())}
    wide = widened(given)
    assert (wide["a"].dtype, wide["b"][0].dtype, wide["b"][1].dtype) == (torch.float32, torch.int64, torch.float32)


def test_nccl_only_where_every_worker_has_a_gpu_of_its_own() -> None:
    assert nccl.usable(["a/1", "a/2", "b/1"])
    assert not nccl.usable(["a/1", "a/1"]) and not nccl.usable(["a/1", ""])


class Store(dict[str, bytes]):
    """What the other worker has left there."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()


@pytest.mark.parametrize(
    ("device", "backend", "gpu"), [("cpu", "auto", ""), ("cuda:0", "gloo", ""), ("cuda:0", "auto", "a/1")]
)
def test_without_a_gpu_for_each_there_is_no_nccl(
    device: str, backend: str, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl, "_gpu", lambda device: "a/1")
    store = Store({"1": b" "})
    assert nccl.open_nccl(lambda purpose: store, (0, 2), device, backend, 1.0, lambda: False) is None  # type: ignore[arg-type, return-value]
    assert store["0"].decode().strip() == gpu


def test_nccl_that_is_asked_for_and_cannot_be_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "_gpu", lambda device: "a/1")
    store = Store({"1": b" "})
    with pytest.raises(PlanError, match="the workers have a/1, no GPU"):
        nccl.open_nccl(lambda purpose: store, (0, 2), "cuda:0", "nccl", 1.0, lambda: False)  # type: ignore[arg-type, return-value]


class Work:
    """A collective of NCCL: done after so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def is_completed(self) -> bool:
        self.looks -= 1
        return self.looks <= 0


def test_a_sum_of_nccl_does_not_count_as_complete_while_a_peer_is_lost() -> None:
    work = nccl.NcclWork(Work(3))
    work.wait(lambda: False)
    work.wait(lambda: True)  # it was complete before the loss
    for looks in (10**9, 1):  # an aborted collective looks completed
        with pytest.raises(RuntimeError, match="a peer was lost"):
            nccl.NcclWork(Work(looks)).wait(lambda: True)


@pytest.mark.parametrize(
    ("plan", "alone", "expected"),
    [
        ("compile=true", True, True),
        ("compile=true", False, False),
        ("compile=true,accumulate=2", True, False),
        ("compile=true,graphs=false", True, False),
        ("compile=true,graphs=true,accumulate=2", False, True),
    ],
)
def test_graphs_are_replayed_where_no_other_worker_sees_their_memory(plan: str, alone: bool, expected: bool) -> None:
    assert replays(Plan.parse(plan), alone=alone) is expected
