"""Between which blocks each worker can hold some of the tokens, and that what mixes tokens holds all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from cordee.core.errors import ModelError
from cordee.group.team import Team
from cordee.split.cut import Cut
from cordee.split.find import calling, choose_cut
from cordee.split.layers import apart, share_of
from cordee.split.recompute import recompute
from cordee.split.staged import Staged
from cordee.split.stages import plan_stages
from cordee.split.tokens import share_tokens
from cordee.train.counting import saved_bytes


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        nn.init.zeros_(self.out.weight)  # hides nothing

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        query, key, value = self.qkv(x).view(batch, length, 3, -1, 2).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """A block in which some code stands after the attention."""

    def __init__(self, then: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.norm, self.attention, self.then = nn.LayerNorm(8), Attention(), then
        self.after, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.places = nn.Parameter(torch.randn(9, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.then(self, self.attention(self.norm(x)))
        out: Tensor = x + self.down(torch.relu(self.up(self.after(x))))
        return out


class Model(nn.Module):
    def __init__(self, then: Callable[[Any, Tensor], Tensor], shared: bool = False) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block(then) for _ in range(2)), nn.Linear(8, 3)
        self.norm = self.blocks[0].norm if shared else nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x).mean(1))
        return out


def choose(model: nn.Module, slices: int = 2) -> Cut:
    torch.manual_seed(0)
    return choose_cut(model, calling(model, torch.randn(3, 9, 8)), None, slices, sequence=True)


def test_norms_and_sums_compute_with_some_of_the_tokens() -> None:
    cut = choose(Model(lambda block, x: nn.functional.dropout(x, 0.1, block.training)), 4)
    (stream,) = cut.streams
    assert (stream.first, stream.last, stream.into, stream.out_of) == ("blocks.0", "blocks.1", 0, 0)
    assert [(one.module, one.arguments) for one in stream.sites[:2]] == [
        ("blocks.0.attention", (0,)), ("blocks.0.up", (0,))
    ]  # fmt: skip
    assert stream.rows[:2] == ("blocks.0.attention.out", "blocks.0.down")
    assert stream.partial[:4] == ("blocks.0.after.bias", "blocks.0.after.weight", "blocks.0.norm.bias",
                                  "blocks.0.norm.weight")  # fmt: skip
    assert "Each worker holds some of the tokens from blocks.0 to blocks.1." in str(cut)


def test_attention_of_torch_takes_all_tokens() -> None:
    layer = nn.TransformerEncoderLayer(8, 4, 16, batch_first=True)
    (stream,) = choose(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)).streams
    assert [one.module for one in stream.sites] == [
        f"layers.{number}.{name}" for number in range(2) for name in ("self_attn", "linear1")
    ]
    assert len(stream.sites[0].arguments) == 3 and "layers.0.norm1.weight" in stream.partial


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Model(lambda block, x: x - x.mean(1, keepdim=True)), "is given other numbers"),
        (Model(lambda block, x: x.roll(1, 1)), "is given other numbers"),
        (Model(lambda block, x: x + block.places[: x.shape[1]]), "is given other numbers"),
        (Model(lambda block, x: x.reshape(3, 9, 8)), "shape"),
        (Model(lambda block, x: x, shared=True), r"blocks.0.norm.bias acts on some of the tokens, and in the model"),
        (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)), "no list of blocks"),
    ],
)
def test_what_mixes_tokens_holds_all_of_them(model: nn.Module, reason: str) -> None:
    with pytest.raises(ModelError, match=rf"sequence=true .*{reason}.* Leave sequence=true out"):
        choose(model)


def test_shares_are_equal_but_for_the_last() -> None:
    assert [share_of(10, place, 4) for place in range(4)] == [(0, 3), (3, 3), (6, 3), (9, 1)]
    assert [share_of(2, place, 4) for place in range(4)] == [(0, 1), (1, 1), (2, 0), (2, 0)]


def test_a_pass_that_is_computed_again_knows_its_tokens_and_draws() -> None:
    """Two passes of different lengths, and only then their backward passes."""
    gradients, kept = [], []
    for how in ("none", "block", "selective"):
        torch.manual_seed(0)
        model = Model(lambda block, x: nn.functional.dropout(x, 0.5, block.training)).double()
        for block in model.blocks:
            nn.init.ones_(block.attention.out.weight)
        (stream,) = choose_cut(model, calling(model, torch.randn(3, 9, 8).double()), None, 2, sequence=True).streams
        share_tokens(model, stream, Team())
        recompute(model, how)
        torch.manual_seed(1)
        losses = [model(torch.randn(3, length, 8).double()).square().sum() for length in (9, 5)]
        for loss in losses:
            loss.backward()
        gradients.append([one.grad for one in model.parameters() if one.grad is not None])
        kept.append(saved_bytes(model, partial(model, torch.randn(3, 9, 8).double())))
    for other in gradients[1:]:
        assert all(torch.equal(*pair) for pair in zip(gradients[0], other, strict=True))
    assert kept[1] < 0.3 * kept[0], "of two blocks their inputs, and what stands behind them"


class Dropping(nn.Module):
    """A layer that drops within."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x @ self.weight, 0.5, self.training)


class Slices:
    """One of two workers, which meet only as far as shapes go."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank


@pytest.mark.parametrize("between", [False, True])
def test_slices_of_a_stage_draw_the_same_where_they_hold_all_tokens(between: bool) -> None:
    """Also in the second micro-batch: the first left the blocks in the middle, or while each slice drew its own."""

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.body, self.head = Dropping(8), Model(dropped), Dropping(3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            out: Tensor = self.head(self.body(nn.functional.dropout(x, 0.5) if between else x))
            return out

    def dropped(block: Block, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5, block.training)

    x, drawn = torch.randn(3, 9, 8), []
    for rank in range(2):
        torch.manual_seed(0)
        model = Noisy()
        run = partial(lambda model: model(x).sum(), model)
        (stream,) = choose_cut(model, calling(model, x), None, 2, sequence=True).streams
        stages = plan_stages(model, run, ["stem", "body.blocks.1"], costs="parameters")
        assert stages.draws == between
        share_tokens(model, stream, SimpleNamespace(slices=Slices(rank)))  # type: ignore[arg-type]
        staged, seen = Staged(model, stages, [0, 1]), []
        for layer in (model.stem, model.head):
            layer.register_forward_hook(lambda layer, args, out, seen=seen: seen.append(out == 0))
        for draw in (5, 6):
            with apart():
                outputs = staged.forward(0, run, draw=draw).outputs
                staged.forward(1, run, outputs, draw=draw)
        drawn.append(seen)
    assert all(torch.equal(*pair) for pair in zip(*drawn, strict=True))
    assert not torch.equal(drawn[0][0], drawn[0][-3])
