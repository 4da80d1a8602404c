"""Which blocks are computed again, what they keep, and that a repetition leaves no trace."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from cordee.core.errors import ModelError
from cordee.split.recompute import find_blocks, keeping_all, pieces, recompute
from cordee.split.staged import Passed, Staged
from cordee.split.stages import plan_stages
from cordee.train.counting import saved_bytes
from staging import compare_state, run_stages

WIDTH, ROWS, DEPTH = 16, 4, 6
ONE = ROWS * WIDTH * 8
"""Bytes of one activation."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x).tanh())


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *(Block() for _ in range(DEPTH)), nn.Linear(WIDTH, 1)).double()


def test_what_is_kept_is_what_is_computed() -> None:
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64)
    counts = []
    for how in ("none", "block"):
        model = make()
        recompute(model, how)
        counts.append(saved_bytes(model, partial(model, x)))
    outside = 2 * ONE  # the inputs of the first and of the last layer
    assert counts == [outside + DEPTH * 5 * ONE, outside + DEPTH * ONE]  # a block keeps its input, and four times that


@pytest.mark.parametrize("how", ["none", "block"])
def test_what_the_stages_of_a_pipeline_keep(how: str) -> None:
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64)
    run = lambda model, x: model(x).square().sum()  # noqa: E731
    whole = make()
    stages = plan_stages(whole, partial(run, whole, x), [4, 4], costs="parameters")
    staged: list[Staged] = []
    outputs: tuple[Tensor, ...] = ()
    for stage in range(2):
        model = make()
        assert len(recompute(model, how, gates=stages.gates)) == (DEPTH if how == "block" else 0)
        staged.append(Staged(model, stages, [stage]))
        passed: list[Passed] = []
        kept = saved_bytes(model, lambda: passed.append(staged[-1].forward(stage, partial(run, model, x), outputs)))  # noqa: B023
        outputs = passed[0].outputs
        ends = ONE + (ROWS * 8 if stage else 0)  # the input of the first or last layer, and what the loss keeps
        assert kept == ends + (DEPTH // 2) * (5 * ONE if how == "none" else ONE)
    run(whole, x).backward()
    for one in staged:
        one.model.zero_grad()
    run_stages(staged, run, x)
    compare_state(whole, staged)


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    torch.manual_seed(3)
    return list(torch.autograd.grad(model(x).square().sum(), list(model.parameters())))


class Drawing(nn.Module):
    """Draws from NumPy and Python, and drops."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.layer(x).tanh()) * random.random() + np.random.rand()


class Centred(nn.Module):
    """Subtracts a moving centre, which its forward pass moves first."""

    centre: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("centre", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.centre = 0.5 * self.centre + 0.5 * x.detach().mean(0)
        return self.layer(x - self.centre).tanh()


@pytest.mark.parametrize(
    "block",
    [Drawing, Centred, lambda: nn.Sequential(spectral_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh()),
     lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH, momentum=None), nn.Tanh())],
    ids=["draws", "moving centre", "spectral norm", "BatchNorm"],
)  # fmt: skip
@pytest.mark.parametrize("how", ["block", "selective"])
def test_a_repetition_leaves_no_trace(block: Callable[[], nn.Module], how: str) -> None:
    models = []
    for recomputed in (False, True):
        torch.manual_seed(0), random.seed(0), np.random.seed(0)
        model = nn.Sequential(block(), block()).double()
        if recomputed:
            assert recompute(model, how) == ["0", "1"]
        x = torch.randn(8, WIDTH, dtype=torch.float64)
        models.append((model, [gradients(model, x) for _ in range(3)], random.random(), np.random.rand()))
    for one, other in zip(models[0][1], models[1][1], strict=True):
        assert all(torch.allclose(*pair, rtol=0, atol=1e-14) for pair in zip(one, other, strict=True))
    for one, other in zip(models[0][0].buffers(), models[1][0].buffers(), strict=True):
        assert torch.equal(one, other)
    assert models[0][2:] == models[1][2:]


def test_blocks_are_found() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder, self.head = Block(), Block(), nn.Linear(1, 1)

    assert list(find_blocks(make())[0]) == [str(place) for place in range(1, DEPTH + 1)]
    assert find_blocks(nn.Sequential(*(nn.Linear(2, 2) for _ in range(9))))[1]  # a row, in pieces
    assert list(find_blocks(Net())[0]) == ["encoder", "decoder"]
    row = nn.Sequential(*(nn.Linear(2, 2) for _ in range(9)))
    recompute(row, "block")
    assert (pieces(row), pieces(make()), type(row).__name__) == (3, 1, "Sequential")
    with pytest.raises(ModelError, match="recompute=block computes blocks of layers again, but this Linear has none"):
        recompute(nn.Linear(2, 2), "block")


def test_blocks_lie_between_the_gates_of_stages() -> None:
    row = nn.Sequential(*(nn.Linear(2, 2) for _ in range(9)))
    with pytest.raises(ModelError, match="expected layers of the pipeline that hold several layers"):
        recompute(row, "block", gates=[str(place) for place in range(9)])
    assert list(find_blocks(nn.Sequential(row, Block()), ["0", "1"])[0]) == ["0"]  # a row within one stage, in pieces
    opened = nn.Sequential(nn.Sequential(Block(), nn.Linear(2, 2)), nn.Sequential(Block(), nn.Linear(2, 2)))
    assert list(find_blocks(opened)[0]) == ["0", "1"]
    assert list(find_blocks(opened, ["0.0", "0.1", "1.0", "1.1"])[0]) == ["0.0", "1.0"]


def test_everything_is_kept_where_it_is_counted() -> None:
    model, x = make(), torch.randn(ROWS, WIDTH, dtype=torch.float64)
    whole = saved_bytes(model, partial(model, x))
    recompute(model, "block")
    with keeping_all():
        assert saved_bytes(model, partial(model, x)) == whole
