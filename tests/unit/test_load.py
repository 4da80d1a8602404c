"""Model files: what a run leaves can be used without the job's code, and cannot run any code of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from cordee.core.errors import CheckpointError, UsageError
from cordee.state.export import PROGRAM, WEIGHTS, called_with, save_model, save_program, trace_program
from cordee.state.load import load, read_weights
from cordee.state.naming import capture, fingerprint
from cordee.state.program import Program, Recipe, verb_named


class Gpt(nn.Module):
    """Two blocks, tied output, positions made in forward, a mask that is not in the state_dict."""

    def __init__(self, width: int = 16, context: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.place = nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, 11, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("mask", torch.full((context, context), float("-inf")).triu(1), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        place = self.place(torch.arange(ids.shape[1], device=ids.device))
        return self.out(self.blocks(self.embed(ids) + place, mask=self.mask, is_causal=True))


class Forms(nn.Module):
    """A dict goes in, a dict with a tuple comes out; counts its calls; multiplies sizes; works in place."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, batch: dict[str, torch.Tensor], scale: float = 2.0, flag: Any = None) -> dict[str, Any]:
        self.calls += 1
        with torch.no_grad():
            shift = self.line(batch["b"]) * torch.tensor(3.0)
        out = torch.relu_(self.line(batch["a"]) + shift) * scale
        return {"out": out.view(out.shape[0] * 2, 2), "more": (out.mean(0), None, 5)}


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(8, 3))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding="same"), nn.BatchNorm2d(4), nn.GELU("tanh"), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(16, 3),
    )  # fmt: skip


def save(folder: Path, model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    save_model(folder / WEIGHTS, capture(model))
    save_program(folder / PROGRAM, model, trace_program(model, args, kwargs))
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "mlp": (mlp, lambda n: torch.randn(n, 3, 4)),
    "cnn": (cnn, lambda n: torch.randn(n, 1, 6, 6)),
    "gpt": (Gpt, lambda n: torch.randint(11, (n, 8))),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("traced_with", [1, 5])
def test_program_computes_what_the_model_computes(tmp_path: Path, kind: str, traced_with: int) -> None:
    torch.manual_seed(0)
    build, data = MODELS[kind]
    model = build()
    before = fingerprint(model.state_dict())
    save(tmp_path, model, data(traced_with))
    assert model.training
    assert fingerprint(model.state_dict()) == before
    back = load(tmp_path)
    assert not back.training
    model.eval()
    for size in (1, 2, 7):
        batch = data(size)
        torch.testing.assert_close(back(batch), model(batch))
    assert back.state_dict().keys() == model.state_dict().keys()
    assert fingerprint(back.state_dict()) == before
    assert [name for name, _ in back.named_parameters()] == [name for name, _ in model.named_parameters()]


def test_structures_constants_and_in_place(tmp_path: Path) -> None:
    model = save(tmp_path, Forms(), {"a": torch.randn(3, 4), "b": torch.randn(3, 4)}, flag=None, scale=2.0)
    assert model.calls == 0
    back, model = load(tmp_path), model.eval()
    batch = {"b": torch.randn(5, 4), "a": torch.randn(5, 4)}
    got, wanted = back(batch), model(batch)
    assert list(got) == ["out", "more"]
    assert got["more"][1:] == (None, 5)
    assert torch.equal(got["out"], wanted["out"])
    assert torch.equal(got["more"][0], wanted["more"][0])
    assert torch.equal(back(batch, scale=2.0)["out"], got["out"])
    with pytest.raises(UsageError, match=r"argument \['scale'\]: got 3\.0, expected 2\.0"):
        back(batch, scale=3.0)
    with pytest.raises(UsageError, match=r"expected \(\(\{'a': 'a tensor of shape \(n, 4\)', 'b'"):
        back({"a": batch["a"]})
    with pytest.raises(UsageError, match=r"got a tensor of shape \(5, 3\), expected a tensor of shape \(n, 4\)"):
        back({"a": torch.randn(5, 3), "b": batch["b"]})


def test_weights_into_a_given_model(tmp_path: Path) -> None:
    model = Gpt()
    save_model(tmp_path / WEIGHTS, capture(model))
    for given in (Gpt, Gpt()):
        back = load(tmp_path, model=given)
        assert not back.training
        assert fingerprint(back.state_dict()) == fingerprint(model.state_dict())
    with pytest.raises(CheckpointError, match="do not fit"):
        load(tmp_path, model=mlp)
    with pytest.raises(UsageError, match="gave a str"):
        load(tmp_path, model=lambda: "model")  # type: ignore[arg-type, return-value]
    with pytest.raises(CheckpointError, match=r"Pass the model as well: cordee\.load\(run, model=\.\.\.\)"):
        load(tmp_path)


def test_weights_file_is_plain_safetensors(tmp_path: Path) -> None:
    save_model(tmp_path / WEIGHTS, capture(Gpt().bfloat16()))
    with safe_open(str(tmp_path / WEIGHTS), "pt") as file:
        assert "embed.weight" in file.keys()  # noqa: SIM118
        assert "out.weight" not in file.keys()  # noqa: SIM118
        assert json.loads(file.metadata()["aliases"]) == {"out.weight": "embed.weight"}
        assert file.get_tensor("embed.weight").dtype == torch.bfloat16
    assert [path.name for path in tmp_path.iterdir()] == [WEIGHTS]
    save_file({"w": torch.ones(2)}, str(tmp_path / "foreign.safetensors"))
    assert list(read_weights(tmp_path / "foreign.safetensors")) == ["w"]


def test_damage_and_absence_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not there"):
        load(tmp_path)
    path = tmp_path / WEIGHTS
    save_model(path, capture(mlp()))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged: its checksum"):
        load(tmp_path)
    path.write_bytes(content[:20])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        load(tmp_path)


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if float(x.sum()) > 0 else -x


class FixedBatch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(3, -1)


class Boxed(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.topk(x, 2)


class Random(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn(x.shape)


def test_a_model_is_traced_as_it_is_called(tmp_path: Path) -> None:
    """Whatever fields a batch has, and whatever goes wrong after the call or with other ways to call it."""
    model, fields = Forms(), {"first": torch.randn(4, 4), "second": torch.randn(4, 4)}

    def objective() -> torch.Tensor:
        assert not model.training
        found: torch.Tensor = model({"a": fields["first"], "b": fields["second"]}, scale=3.0)["no such output"]
        return found

    args, kwargs = called_with(model, lambda: fields["x"], objective, lambda: model(None))
    assert args[0]["b"] is fields["second"] and kwargs == {"scale": 3.0}
    assert model.training and model.calls == 0 and not model._forward_pre_hooks
    save(tmp_path, model, *args, **kwargs)
    batch = {"a": torch.randn(2, 4), "b": torch.randn(2, 4)}
    assert torch.equal(load(tmp_path)(batch, scale=3.0)["out"], model.eval()(batch, scale=3.0)["out"])


def test_a_model_that_is_not_called_as_a_whole() -> None:
    model = mlp()
    with pytest.raises(CheckpointError, match=r"does not call it as a whole, .* The training .* not affected"):
        called_with(model, lambda: model[1](torch.zeros(1, 12)), lambda: {}["x"])
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("kind", [Branches, FixedBatch, Boxed, Random])
def test_a_model_that_cannot_be_traced_says_so(tmp_path: Path, kind: type[nn.Module]) -> None:
    with pytest.raises(CheckpointError, match=r"cannot be saved as a program\. \S+"):
        model = kind()
        save_program(tmp_path / PROGRAM, model, trace_program(model, [torch.randn(4, 6)]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        "aten.save.default",
        "aten.from_file.default",
        "aten._print.default",
        "aten.linear.__init__",
        "aten.__class__.default",
        "aten.Delete.Dict_str",
        "prim.Print.default",
        "os.system",
        "operator.attrgetter",
        "torch.load",
        "torch.ops.load_library",
        "",
    ],
)
def test_a_program_can_do_nothing_but_compute(name: str) -> None:
    recipe = Recipe((), {}, [("x", name, (), {})], None, {}, [], [])
    with pytest.raises(CheckpointError, match="not among the tensor operations"):
        Program(Recipe.from_json(recipe.to_json()), {}, {})


def test_ordinary_operations_are_allowed() -> None:
    for name in ("aten.linear.default", "aten.add_.Tensor", "aten.sym_size.int", "aten.einsum.default", "operator.mul"):
        assert callable(verb_named(name))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content.pop("nodes"),
        lambda content: content.update(format=99),
        lambda content: content.update(state={"p": "weight of nobody"}),
        lambda content: content.update(output={"$dtype": "load"}),
        lambda content: content.update(output={"$unheard": 1}),
        lambda content: content.update(output={"$items": 3}),
        lambda content: content["nodes"].append(["only a name"]),
    ],
)
def test_a_spoilt_program_is_refused(tmp_path: Path, spoil: Callable[[dict[str, Any]], Any]) -> None:
    content = Recipe((), {}, [], None, {}, [], []).to_json()
    save_model(tmp_path / WEIGHTS, capture(nn.Linear(1, 1)))
    save_file({}, str(tmp_path / PROGRAM), metadata={"program": json.dumps(content)})
    load(tmp_path)
    spoil(content)
    save_file({}, str(tmp_path / PROGRAM), metadata={"program": json.dumps(content)})
    with pytest.raises(CheckpointError, match="program"):
        load(tmp_path)
