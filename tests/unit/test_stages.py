"""Ordinary models in stages, all of them in one process, give what the whole model gives."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from jobs.gpt import WINDOW, Gpt
from staging import close, compare, compare_state, loss_of, make_stages, mlp, names, rows, run_stages

F = nn.functional
pytestmark = pytest.mark.usefixtures("calm")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("split", [False, True])
def test_a_sequence_of_layers(stages: int, split: bool) -> None:
    plan = compare(mlp(), loss_of, rows(5, 3, 1), stages, split=split)
    assert names(plan) == ["0", "2", "4", "6"]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_gpt(stages: int, tied: bool) -> None:
    def objective(model: nn.Module, batch: Tensor) -> Tensor:
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    batches = [torch.randint(0, 256, size) for size in ((3, WINDOW), (1, WINDOW), (2, 7))]
    plan = compare(Gpt("float64", tied, 256, layers=4), objective, batches, stages)
    assert names(plan) == ["bytes", "places", *(f"blocks.{layer}" for layer in range(4)), "norm", "head"]
    assert [one.stages for one in plan.tied] == ([(0, stages - 1)] if tied else [])
    assert all(len(cut.points) == 1 for cut in plan.cuts)


class Residual(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.norm2 = nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Conv2d(before, after, 1) if before != after else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        out += x if self.shortcut is None else self.shortcut(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(Residual(4, 4), Residual(4, 4))
        self.layer2 = nn.Sequential(Residual(4, 8), Residual(8, 8))
        self.last = nn.BatchNorm2d(8, affine=False)  # has no parameters, but a state
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(self.relu(self.norm(self.conv(x))))
        x = self.last(self.layer2(F.max_pool2d(x, 2)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("stages", [2, 3, 4, 7])
def test_a_residual_network_with_batch_norm(stages: int) -> None:
    plan = compare(ResNet().double(), loss_of, rows(5, 3, 2, shape=(3, 8, 8)), stages)
    assert names(plan) == ["conv", "norm", "layer1.0", "layer1.1", "layer2.0", "layer2.1", "last", "head"]


class UNet(nn.Module):
    """Values that skip over cuts, written as plain code."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(size, size // 2) for size in (16, 8))
        self.middle = nn.Linear(4, 4)
        self.up = nn.ModuleList(nn.Linear(size, size) for size in (8, 16))
        self.first, self.head = nn.Linear(6, 16), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        skips = []
        for layer in self.down:
            skips.append(x)
            x = layer(x).relu()
        x = torch.cat([self.middle(x), x], 1)
        for layer, skip in zip(self.up, reversed(skips), strict=True):
            x = torch.cat([layer(x).tanh(), skip[:, : x.shape[1]]], 1)
        return self.head(x)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("stages", [2, 3, 4, 7])
def test_values_that_skip_over_cuts_are_carried_along(stages: int, split: bool) -> None:
    plan = compare(UNet().double(), loss_of, rows(4, 2), stages, split=split)
    assert max(len(cut.points) for cut in plan.cuts) > 1


class Block(nn.Module):
    """Takes and gives what `kind` says; its code looks at numbers."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.a, self.b = kind, nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, state: Any) -> Any:
        x, y, mask = (state[key] for key in ("x", "y", "mask")) if self.kind == "dict" else state
        for _ in range(3):
            if x.mean() > 0:
                x = x + self.a(y * mask)
            else:
                y = (y - self.b(x)).tanh()
        x, y = x + self.b(y), y + self.a(x)
        return {"x": x, "y": y, "mask": mask} if self.kind == "dict" else type(state)((x, y, mask))


class Nested(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.stem, self.head = kind, nn.Linear(6, 6), nn.Linear(6, 3)
        self.blocks = nn.ModuleList(Block(kind) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        mask = torch.ones(6, 6, dtype=torch.float64).tril()[x.shape[0] % 6]
        state: Any = {"x": x, "y": x.sin(), "mask": mask} if self.kind == "dict" else (x, x.sin(), mask)
        for block in self.blocks:
            state = block(list(state) if self.kind == "list" else state)
        return self.head(state["x"] * state["y"] if self.kind == "dict" else state[0] * state[1])


@pytest.mark.parametrize("kind", ["tuple", "list", "dict"])
def test_nested_activations_and_control_flow_by_numbers(kind: str) -> None:
    for stages in (2, 4):
        plan = compare(Nested(kind).double(), loss_of, rows(5, 3, 1), stages)
        assert [f"blocks.{layer}" for layer in range(4)] == names(plan)[1:5]
    # The mask passes through the blocks unchanged: every stage has it anyway.
    plan = compare(Nested(kind).double(), loss_of, rows(5, 3), ["stem", "blocks.1", "blocks.3"])
    assert [len(cut.points) for cut in plan.cuts] == [2, 2]


@dataclasses.dataclass
class Output:
    hidden: Tensor
    logits: Tensor


class Returns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Output:
        hidden = x + self.a(x).relu()
        return Output(hidden, self.b(hidden + x))


def test_layers_that_return_a_dataclass() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = Returns(), Returns()

        def forward(self, x: Tensor) -> Tensor:
            first = self.one(x)
            return first.logits + self.two(first.hidden).logits

    plan = compare(Model().double(), loss_of, rows(4, 3), ["one", "two"])
    assert [len(cut.points) for cut in plan.cuts] == [2]


class Translator(nn.Module):
    """All blocks of the decoder use what the encoder gave."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True), 3)
        self.table, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], dtype=torch.float64)
        memory = self.encoder(self.table(ids))
        return self.head(self.decoder(self.table(ids.flip(1)), memory, tgt_mask=mask))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("stages", [2, 3, 5])
def test_an_encoder_whose_result_all_decoder_blocks_use(stages: int) -> None:
    def objective(model: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

    batches = [torch.randint(0, 20, size) for size in ((3, 5), (2, 5), (2, 4))]
    plan = compare(Translator().double(), objective, batches, stages)
    layers = [f"{part}.layers.{at}" for part, count in (("encoder", 2), ("decoder", 3)) for at in range(count)]
    assert set(layers) <= set(names(plan))


class Glue(nn.Module):
    """Parameters and layers that are used outside of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.scale = nn.Parameter(torch.randn(1, 6)), nn.Parameter(torch.ones(1))
        self.table, self.unused = nn.Linear(6, 6), nn.Linear(2, 2)
        self.blocks = nn.ModuleList(Returns() for _ in range(3))
        self.shared, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.table(x) + self.token
        for block in self.blocks:
            x = self.shared(block(x).hidden)
        return self.head(F.linear(x * self.scale, self.table.weight))


@pytest.mark.parametrize("stages", [2, 3])
def test_parameters_that_several_stages_use(stages: int) -> None:
    plan = compare(Glue().double(), loss_of, rows(4, 3), [f"blocks.{at}" for at in range(stages)])
    tied = {one.names[0]: one.stages for one in plan.tied}
    every = tuple(range(stages))
    assert tied == {"shared.weight": every, "shared.bias": every, "table.weight": (0, stages - 1)}
    assert plan.parameters["token"] == (0,) and plan.parameters["scale"] == (stages - 1,)
    assert plan.parameters["unused.weight"] == (0,)


@pytest.mark.parametrize("frozen", [["0"], ["0", "2"], ["4"], ["2", "4", "6"]])
@pytest.mark.parametrize("split", [False, True])
def test_frozen_layers(frozen: list[str], split: bool) -> None:
    model = mlp()
    for name in frozen:
        model.get_submodule(name).requires_grad_(False)
    plan = compare(model, loss_of, rows(4, 2), [1, 1, 1, 1], split=split)
    trained = [name not in frozen for name in ("0", "2", "4")]
    assert [cut.points[0].requires_grad for cut in plan.cuts] == [any(trained[: cut + 1]) for cut in range(3)]


def test_unfreezing_what_was_frozen_when_stages_were_planned_is_refused() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    batch = rows(3)[0]
    staged = make_stages(model, loss_of, batch, [1, 3])
    staged[0].model[0].requires_grad_(True)
    with pytest.raises(Exception, match="requires gradients now"):
        run_stages(staged, loss_of, batch)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 6)
        self.lstm, self.second = nn.LSTM(6, 5, num_layers=2, batch_first=True), nn.GRU(5, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        out, _ = self.lstm(self.table(ids))
        return self.head(self.second(out)[0][:, -1])


@pytest.mark.thinned(2)
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_recurrent_layers(stages: int) -> None:
    batches = [(torch.randint(0, 20, size), torch.randint(0, 3, size[:1])) for size in ((4, 5), (2, 5), (3, 7))]
    assert names(compare(Recurrent().double(), loss_of, batches, stages)) == ["table", "lstm", "second", "head"]


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 6)
        self.blocks = nn.ModuleList(Returns() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            result = checkpoint(block, x, use_reentrant=False)
            x = result.hidden
        return result.logits


class Biased(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.bias, self.weight = nn.Parameter(torch.randn(6)), weight  # in this order

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(F.linear(x, self.weight, self.bias))


class Reused(nn.Module):
    """Layers with biases of their own and one weight, all on the second stage."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, weight = nn.Linear(6, 6), nn.Parameter(torch.randn(6, 6))
        self.layers = nn.ModuleList(Biased(weight) for _ in range(4))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.enter(x))
        return self.head(torch.stack([layer(x) for layer in self.layers]).sum(0))


def test_a_weight_of_several_layers_with_biases_in_one_stage() -> None:
    for split in (False, True):
        compare(Reused().double(), loss_of, rows(4, 2, 3, 5), ["enter", "layers.0"], split=split)


class Chained(nn.Module):
    """One weight twice in a stage, the second time behind the first."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.shared, self.head = nn.Linear(6, 6), nn.Linear(6, 6, bias=False), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.enter(x))
        x = torch.tanh(self.shared(x)) + x
        return self.head(torch.tanh(self.shared(x)) + x)


def test_a_weight_that_is_used_again_behind_itself() -> None:
    for split in (False, True):
        compare(Chained().double(), loss_of, rows(4, 2), ["enter", "shared"], split=split)


class Hands(nn.Module):
    """A block that hands a learned tensor on, which it may also use itself."""

    def __init__(self, used: bool) -> None:
        super().__init__()
        self.inner, self.token, self.used = nn.Linear(6, 6), nn.Parameter(torch.randn(6)), used

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        token = self.token.sin()
        return torch.tanh(self.inner(x) + token if self.used else self.inner(x)), token


class Sums(nn.Module):
    """Two parameters of which autograd gives one gradient, in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        self.one, self.other = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.enter(x)) * (self.one + self.other))


def test_two_parameters_have_gradients_of_their_own() -> None:
    compare(Sums().double(), loss_of, rows(4, 2, 3), ["enter", "head"], split=True)


class Handing(nn.Module):
    def __init__(self, used: bool) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        self.blocks = nn.ModuleList(Hands(used) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x, token = block(x)
        return self.head(x * token)


@pytest.mark.parametrize("used", [False, True])
def test_a_learned_tensor_that_a_block_hands_on_by_itself(used: bool) -> None:
    for split in (False, True):
        compare(Handing(used).double(), loss_of, rows(4, 2), ["stem", "blocks.1", "head"], split=split)


def test_checkpointed_layers() -> None:
    for split in (False, True):
        compare(Checkpointed().double(), loss_of, rows(4, 2), 4, split=split)


def test_autocast() -> None:
    def objective(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(batch[0].float()).float(), batch[1])

    model = mlp().float()
    batches = rows(4, 2)
    staged = make_stages(model, objective, batches[0], 3)
    for batch in batches:
        wanted = objective(model, batch)
        wanted.backward()
        close(run_stages(staged, objective, batch), wanted.detach(), "loss")
    compare_state(model, staged)  # the same operations on the same numbers, so even bfloat16 agrees
