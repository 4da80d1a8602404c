"""Which blocks of a model are gathered one by one, and where a part of a tensor lies in the whole."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cordee.group.sliced import cut_as, places_of
from cordee.split.shard import find_units, seeing_calls


class Block(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Linear(24, width))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.wide(self.norm(x))
        return made


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.blocks, self.head = nn.Embedding(9, 6), nn.ModuleList([Block(), Block()]), nn.Linear(6, 9)
        self.head.weight = self.words.weight


def tied() -> nn.Module:
    model = nn.Sequential(Block(), Block(), Block())
    model[2].norm.weight = model[0].norm.weight  # type: ignore[union-attr, assignment]
    return model


@pytest.mark.parametrize(
    ("make", "units"),
    [
        (Gpt, ["blocks.0", "blocks.1"]),
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.Sequential(Block(), Block())), ["1.0", "1.1"]),
        (lambda: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.BatchNorm1d(16)), ["0", "2"]),
        (tied, ["0.wide.0", "0.wide.2", "1", "2.wide.0", "2.wide.2"]),
        (lambda: nn.Linear(4, 4), []),
    ],
)
def test_units_are_blocks_of_lists_that_share_no_parameter(make: Callable[[], nn.Module], units: list[str]) -> None:
    assert list(find_units(make())) == units


def test_a_layer_that_is_not_called_is_no_unit() -> None:
    model = nn.Sequential(Block(), Block())
    with seeing_calls(model) as called:
        model[1].wide(model[0](torch.zeros(2, 6)))  # type: ignore[operator, union-attr]
    assert find_units(model, called) == ("0", "1.wide.0", "1.wide.2")


class Part(SimpleNamespace):
    """What a DTensor says of itself."""

    def dim(self) -> int:
        return len(self.shape)


def part(
    shape: tuple[int, ...], ranks: dict[str, tuple[int, int]], placements: list[Any], local: tuple[int, ...]
) -> Any:
    mesh = SimpleNamespace(
        mesh_dim_names=tuple(ranks),
        ndim=len(ranks),
        get_local_rank=lambda axis: list(ranks.values())[axis][0],
        size=lambda axis: list(ranks.values())[axis][1],
    )
    return Part(shape=shape, device_mesh=mesh, placements=tuple(placements), _local_tensor=torch.empty(local))


def cut(dim: int, **more: int) -> Any:
    return SimpleNamespace(is_shard=lambda: True, dim=dim, **more)


@pytest.mark.parametrize(("rank", "rows"), [(0, [0, 1]), (1, [2, 3]), (2, [4]), (3, [])])
def test_shards_are_uneven_and_may_be_empty(rank: int, rows: list[int]) -> None:
    whole = torch.arange(15).view(5, 3)
    own = part((5, 3), {"shard": (rank, 4)}, [cut(0)], (len(rows), 3))
    assert torch.equal(cut_as(own, whole), whole[rows])
    assert len(places_of(own)) == bool(rows)


@pytest.mark.parametrize("shard", [0, 1])
def test_a_shard_of_a_slice_of_several_blocks_lies_at_several_places(shard: int) -> None:
    whole = torch.arange(24).view(12, 2)  # three blocks of four rows; the second slice has two rows of each
    sliced = whole[[2, 3, 6, 7, 10, 11]]
    ranks = {"shard": (shard, 2), "slice": (1, 2)}
    own = part((12, 2), ranks, [cut(0, split_factor=2), cut(0, split_factor=3)], (3, 2))
    assert torch.equal(cut_as(own, whole), sliced[3 * shard : 3 * shard + 3])
    assert [place.offset[0] for place in places_of(own)] == ([2, 6] if shard == 0 else [7, 10])


def test_a_shard_of_a_slice_of_columns() -> None:
    whole = torch.arange(60).view(5, 12)
    own = part((5, 12), {"shard": (1, 2), "slice": (0, 2)}, [cut(0), cut(1, split_factor=3)], (2, 6))
    assert torch.equal(cut_as(own, whole), whole[3:][:, [0, 1, 4, 5, 8, 9]])
