"""Which layers a cut is found for, and that what is not understood stays whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention, softmax

from cordee.core.errors import ModelError
from cordee.split.cut import Cut, Setting
from cordee.split.find import calling, choose_cut, find_cut, fit_cut
from cordee.split.named import check
from cordee.split.trial import narrowed
from cordee.split.vocabulary import LARGE


class Pair(nn.Module):
    """Two linear layers, and a function of all that may stand between them."""

    def __init__(self, between: Callable[[Any, Tensor, Tensor], Tensor], features: int = 8) -> None:
        super().__init__()
        self.between = between
        self.up, self.down = nn.Linear(6, features), nn.Linear(features, 6)
        self.norm, self.scale = nn.LayerNorm(6), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self.between(self, self.up(x), x))
        return out


class Attention(nn.Module):
    """Query, key and value in one layer, laid out as `order` says, and sizes that are fixed or not."""

    def __init__(self, heads: int = 4, order: str = "qkv", fixed: bool = False) -> None:
        super().__init__()
        self.n_head, self.order, self.fixed = heads, order, fixed
        self.qkv, self.out = nn.Linear(8, 6 * heads), nn.Linear(2 * heads, 8)

    def forward(self, x: Tensor) -> Tensor:
        three = self.qkv(x)
        if self.order == "qkv":
            parts = three.view(*x.shape[:2], 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        else:
            parts = three.view(*x.shape[:2], self.n_head, 3, -1).permute(3, 0, 2, 1, 4)
        seen = scaled_dot_product_attention(*parts).transpose(1, 2)
        size = 2 * 4 if self.fixed else -1
        out: Tensor = self.out(seen.reshape(*x.shape[:2], size))
        return out


def find(model: nn.Module, sample: Tensor, slices: int = 2) -> Cut:
    return find_cut(model, calling(model, sample), slices)


def cuts(cut: Cut) -> dict[str, str]:
    return {one.layer: one.how for one in cut.layers}


def why(cut: Cut, layer: str) -> str:
    return next(one.reason for one in cut.whole if one.layer == layer)


@pytest.mark.parametrize(
    "between",
    [
        lambda self, up, x: gelu(up),
        lambda self, up, x: torch.relu(up).square().clamp(max=3.0),
        lambda self, up, x: nn.functional.dropout(up, 0.5, self.training),
        lambda self, up, x: up.clone().mul_(2.0),
    ],
)
def test_work_on_single_features_is_cut(between: Any) -> None:
    torch.manual_seed(0)
    assert cuts(find(Pair(between), torch.randn(3, 6))) == {"up": "column", "down": "row"}


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        (lambda self, up, x: softmax(up, -1), "do not stay apart"),
        (lambda self, up, x: nn.functional.layer_norm(up, (8,)), "forward pass fails"),
        (lambda self, up, x: up.flip(-1), "do not stay apart"),
        (lambda self, up, x: up - up.mean(-1, keepdim=True), "do not stay apart"),
        (lambda self, up, x: up.reshape(-1, 8), "fails: shape"),
        (lambda self, up, x: up * torch.rand(()).item(), "another result when it is repeated"),
        (lambda self, up, x: up * self.norm(x).mean() + self.up(x), "norm.bias"),
    ],
)
def test_what_mixes_features_stays_whole(between: Any, reason: str) -> None:
    torch.manual_seed(0)
    model = Pair(between)
    if "norm" in reason:  # it acts elsewhere too
        model.register_forward_pre_hook(lambda module, args: (model.norm(args[0]),))
    cut = find(model, torch.randn(3, 6))
    assert not cut.layers and reason in why(cut, "up"), str(cut)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.LayerNorm])
def test_a_layer_that_stands_between_and_fails_is_named(norm: type[nn.Module]) -> None:
    cut = find(nn.Sequential(nn.Linear(6, 8), norm(8), nn.ReLU(), nn.Linear(8, 6)), torch.randn(3, 6))
    assert not cut.layers and f"1 ({norm.__name__}), which stands between, fails: " in why(cut, "0"), str(cut)


def test_a_weight_between_has_a_gradient_that_is_added_up() -> None:
    cut = find(Pair(lambda self, up, x: up * self.scale), torch.randn(3, 6))
    assert cuts(cut) == {"up": "column", "down": "row"} and cut.partial == ("scale",)


def test_an_output_that_goes_elsewhere_keeps_its_layer_whole() -> None:
    class Two(Pair):
        def forward(self, x: Tensor) -> Any:
            seen = self.up(x)
            return self.down(seen), seen.sum()

    cut = find(Two(lambda *_: None), torch.randn(3, 6))  # type: ignore[arg-type, return-value]
    assert not cut.layers and "part of the model's result" in why(cut, "up")


@pytest.mark.parametrize(("order", "blocks"), [("qkv", 3), ("by head", 1)])
def test_fused_projections_are_cut_by_heads(order: str, blocks: int) -> None:
    model = Attention(order=order)
    cut = find(model, torch.randn(2, 5, 8))
    assert [(one.layer, one.how, one.blocks) for one in cut.layers] == [("qkv", "column", blocks), ("out", "row", 1)]
    assert cut.settings == (Setting("", "n_head", 2),)
    assert model.n_head == 4
    assert "by heads" in cut.layers[0].reason


@pytest.mark.parametrize(
    ("model", "reason"),
    [(Attention(heads=3), "n_head=3 cannot be shared out"), (Attention(fixed=True), "forward pass fails")],
)
def test_heads_that_cannot_be_shared_out_stay_whole(model: Attention, reason: str) -> None:
    cut = find(model, torch.randn(2, 5, 8))
    assert not cut.layers and reason in why(cut, "qkv") == why(cut, "out")


def test_weights_that_are_nought_hide_nothing() -> None:
    model = Pair(lambda self, up, x: up.flip(-1))
    nn.init.zeros_(model.up.weight)
    nn.init.zeros_(model.up.bias)
    assert not find(model, torch.randn(3, 6)).layers


def test_a_chain_is_cut_in_pairs_and_odd_sizes_stay_whole() -> None:
    layers = [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)]
    cut = find(nn.Sequential(*layers), torch.randn(3, 4))
    assert cuts(cut) == {"0": "column", "2": "row"}
    assert "the 5 inputs of 6" in why(cut, "4")


def test_shared_weights_stay_whole() -> None:
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 4))
    model[1].weight = model[0].weight  # type: ignore[assignment]
    cut = find(model, torch.arange(6))
    assert not cut.layers and "shares its weight with 0.weight" in why(cut, "1")


class Words(nn.Module):
    """An embedding and a head; `kind` says how they belong together."""

    def __init__(self, kind: str = "", words: int = LARGE + 1, **options: Any) -> None:
        super().__init__()
        self.kind = kind
        self.table, self.middle = nn.Embedding(words, 4, **options), Pair(lambda self, up, x: gelu(up))
        self.inner, self.head = nn.Linear(4, 6), nn.Linear(6, words)
        if kind:
            self.head = nn.Linear(4, words)
            self.head.weight = self.table.weight
        if kind == "bias":  # as in BERT
            self.bias = self.head.bias

    def forward(self, x: Tensor) -> Tensor:
        seen = self.inner(self.table(x))
        seen = seen + self.middle(seen)
        if self.kind == "function":
            return nn.functional.linear(seen[..., :4], self.table.weight, self.head.bias)
        out: Tensor = self.head(seen[..., :4] if self.kind else seen)
        return out


@pytest.mark.parametrize("kind", ["", "tied", "bias"])
def test_large_vocabularies_are_cut(kind: str) -> None:
    model = Words(kind)
    cut = find(model, torch.arange(6)[None])
    assert cuts(cut) == {"table": "vocabulary", "middle.up": "column", "middle.down": "row", "head": "vocabulary"}
    assert "each worker holds 2,049 of 4,097 rows; 4,097 outputs per input are gathered" in cut.layers[-1].reason
    assert ("one weight with table" in cut.layers[-1].reason) == bool(kind)
    assert cut.parameters[1] == sum(one.numel() for one in model.parameters())
    assert cut.parameters[0] == pytest.approx(cut.parameters[1] / 2, rel=0.01)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Words("function"), "table.weight is also used by the model"),
        (Words("tied", max_norm=1.0), "max_norm=1.0"),
        (Words(scale_grad_by_freq=True), "scale_grad_by_freq=True"),
        (Words("tied", sparse=True), "sparse=True"),
        (Words(words=LARGE - 1), "fewer than 4,096 rows"),
    ],
)
def test_vocabularies_that_stay_whole(model: Words, reason: str) -> None:
    cut = find(model, torch.arange(6)[None])
    assert reason in why(cut, "table"), str(cut)
    assert ("head" in cuts(cut)) == (not model.kind and "fewer" not in reason)


def test_a_plan_corrects_what_is_found() -> None:
    model, sample = Words("tied", words=7), torch.arange(6)[None]

    def choose(plan: dict[str, str], slices: int = 2) -> Cut:
        return choose_cut(model, calling(model, sample), plan, slices)

    middle = {"middle.up": "column", "middle.down": "row"}
    assert cuts(choose({"head": "vocabulary"})) == {"table": "vocabulary", **middle, "head": "vocabulary"}
    assert cuts(choose({"*": "whole", "table": "vocabulary", "head": "vocabulary"})) == {
        "table": "vocabulary", "head": "vocabulary"
    }  # fmt: skip
    assert cuts(choose({"inner": "vocabulary", "middle*": "whole"})) == {"inner": "vocabulary"}
    assert cuts(choose({"middle.up": "column", "middle.down": "row", "head": "vocabulary"})) == {
        **middle, "head": "vocabulary", "table": "vocabulary"
    }  # fmt: skip
    assert "tensor_plan" in why(choose({"middle.up": "whole", "head": "vocabulary"}), "middle.down")
    with pytest.raises(ModelError, match=r"table and head by vocabulary, but tensor_plan keeps head whole"):
        choose({"table": "vocabulary", "head": "whole"})
    with pytest.raises(ModelError, match=r"7 rows are too few for 5 workers"):
        choose({"table": "vocabulary"}, 5)


def test_nothing_is_changed_by_the_search() -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.BatchNorm1d(5))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    draws, fast = torch.get_rng_state(), torch.backends.mha.get_fastpath_enabled()
    cut = find(model, torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0)))
    assert cuts(cut) == {"0.self_attn": "heads", "0.linear1": "column", "0.linear2": "row"}
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), draws) and torch.backends.mha.get_fastpath_enabled() == fast
    assert all(module.training and "forward" not in vars(module) for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_named_layers_get_what_their_modules_need_and_nothing_else_is_cut() -> None:
    model = nn.ModuleDict({"a": Attention(), "b": Attention()})
    sample = torch.randn(2, 5, 8)
    named, _ = check(model, {"a.qkv": "column", "a.out": "row"}, 2)
    fitted = fit_cut(model, lambda: model["b"](model["a"](sample)), named)
    assert [(one.layer, one.blocks) for one in fitted.layers] == [("a.qkv", 3), ("a.out", 1)]
    assert fitted.settings == (Setting("a", "n_head", 2),)
    assert len({one.group for one in fitted.layers}) == 1


def test_named_layers_whose_heads_cannot_be_shared_out_are_refused() -> None:
    model = nn.Sequential(Attention(heads=3))
    named, _ = check(model, {"0.qkv": "column", "0.out": "row"}, 2)
    with pytest.raises(ModelError, match=r"0\.qkv and 0\.out, but 0\.n_head=3 cannot .* Choose a tensor="):
        fit_cut(model, calling(model, torch.randn(2, 5, 8)), named)


def test_a_cut_is_printed_and_written() -> None:
    cut = find(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(2, 4))
    assert str(cut).splitlines() == [
        "layer  weight  cut     why",
        "0      8×4     column  goes to 2 feature by feature",
        "2      3×8     row     takes the slices of 0",
        "Each worker holds 35 of 67 parameters, 52%.",
    ]
    assert json.loads(json.dumps(cut.to_dict()))["layers"][1]["how"] == "row"


def test_a_slice_of_blocks_takes_a_part_of_each() -> None:
    assert narrowed(torch.arange(12), 1, 2, 3).tolist() == [2, 3, 6, 7, 10, 11]
