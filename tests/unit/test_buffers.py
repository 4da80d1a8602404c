"""Buffers of a void step come back, however the module changed them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from cordee.group.team import Team
from cordee.sync.batchnorm import StepState
from cordee.train.buffers import QUIET, Buffers


def made() -> Buffers:
    return Buffers(Team().layers, StepState(), [], lambda message: None)


class Counting(nn.Module):
    """One buffer that forward passes change, and one that is none."""

    n: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(3))
        self.register_buffer("none", None)


def assign(module: Counting) -> None:
    module.n = module.n + 1


def grow(module: Counting) -> None:
    module.n = torch.cat([module.n, torch.ones(1)])


def replace_and_write(module: Counting) -> None:
    module.n.data.add_(7)
    module.n = torch.zeros(3)


CHANGES: dict[str, Callable[[Counting], object]] = {
    "in place": lambda module: module.n.add_(1),
    "unseen": lambda module: module.n.data.add_(1),
    "another tensor": assign,
    "another shape": grow,
    "another one, and the old one changed": replace_and_write,
    "one is made": lambda module: setattr(module, "none", torch.ones(2)),
    "one comes": lambda module: module.register_buffer("late", torch.ones(2)),
    "one goes": lambda module: delattr(module, "n"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_void_step_leaves_no_trace(change: str) -> None:
    model = nn.Sequential(Counting(), nn.Linear(2, 2))
    module = model[0]
    assert isinstance(module, Counting)
    keeper = made()
    keeper.watch(model)
    module.n.data.add_(1)  # a step that was committed
    keeper.begin()
    tensor = module.n
    for _ in range(2):  # a step may be void more than once
        CHANGES[change](module)
        keeper.bring_back()
        assert module.n is tensor and module.n.tolist() == [1.0, 1.0, 1.0]
        assert module._buffers.keys() == {"n", "none"} and module.none is None


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_committed_step_did_stays(change: str) -> None:
    module = Counting()
    keeper = made()
    keeper.watch(module)
    CHANGES[change](module)
    wanted = {name: None if one is None else one.clone() for name, one in module._buffers.items()}
    keeper.begin()
    keeper.bring_back()
    assert module._buffers.keys() == wanted.keys()
    for name, one in module._buffers.items():
        kept = wanted[name]
        assert (one is None) == (kept is None) and (one is None or kept is None or torch.equal(one, kept)), name


def test_a_buffer_that_cannot_be_written_is_left_alone() -> None:
    module = nn.Module()
    module.register_buffer("positions", torch.arange(3).expand(4, 3))
    keeper = made()
    keeper.watch(module)
    keeper.begin()
    keeper.bring_back()
    assert torch.equal(module.positions, torch.arange(3).expand(4, 3))  # type: ignore[arg-type]


@pytest.mark.parametrize("write", [lambda tensor: tensor.add_(1), lambda tensor: tensor.data.add_(1)])
def test_a_buffer_that_changes_is_brought_back(write: Callable[[torch.Tensor], object]) -> None:
    model = Counting()
    keeper = made()
    keeper.watch(model)
    for step in range(1, 2 * QUIET):  # every one of them is committed
        write(model.n)
        keeper.begin()
        write(model.n)
        assert keeper.changed() == {(model, "n")}
        keeper.bring_back()
        assert torch.equal(model.n, torch.full((3,), float(step)))


def test_a_constant_is_believed_to_be_one_until_its_version_moves() -> None:
    model = Counting()
    keeper = made()
    keeper.watch(model)
    for _ in range(QUIET):
        keeper.begin()
        assert not keeper.changed()
    model.n.data.add_(1)  # after so long, its content is not looked at
    assert not keeper.changed()
    keeper.begin()
    model.n.add_(1)
    assert keeper.changed()
    keeper.begin()
    model.n.add_(5)
    keeper.bring_back()
    assert torch.equal(model.n, torch.full((3,), 2.0))
