"""`start_from`: files as Hugging Face writes them, parts of a model, and what is told of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from cordee.core.errors import CheckpointError
from cordee.state.load import load, read_weights, take_weights


class Tied(nn.Module):
    """Input and output embedding are one tensor."""

    def __init__(self, words: int = 7, classes: int = 0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.lm_head = nn.Linear(4, words, bias=False)
        self.lm_head.weight = self.embed.weight
        if classes:
            self.classifier = nn.Linear(4, classes)
        self.to(dtype)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.lm_head(self.body(self.embed(ids)))
        return out


def hugging_face(model: nn.Module, *, without: tuple[str, ...] = ("lm_head.weight",)) -> dict[str, torch.Tensor]:
    """Its tensors as `save_pretrained` writes them: of tied ones the first."""
    return {name: tensor for name, tensor in model.state_dict().items() if name not in without}


def taken(path: Path, model: nn.Module, *, partly: bool = False) -> str:
    return take_weights(model, read_weights(path), where=path.name, partly=partly)


@pytest.fixture
def source() -> Tied:
    torch.manual_seed(1)
    return Tied()


def test_a_tied_weight_needs_one_of_its_names(source: Tied, tmp_path: Path) -> None:
    for without in ("lm_head.weight", "embed.weight"):
        save_file(hugging_face(source, without=(without,)), tmp_path / "model.safetensors", {"format": "pt"})
        model = Tied()
        assert taken(tmp_path / "model.safetensors", model) == ""
        assert model.lm_head.weight is model.embed.weight and torch.equal(model.embed.weight, source.embed.weight)
        assert torch.equal(load(tmp_path, model=Tied)(torch.arange(3)), source.eval()(torch.arange(3)))
    different = {**source.state_dict(), "lm_head.weight": torch.zeros(7, 4)}
    save_file({name: tensor.clone() for name, tensor in different.items()}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"embed.weight and lm_head.weight are one tensor in the model"):
        taken(tmp_path / "model.safetensors", Tied())


def test_a_folder_of_several_files(source: Tied, tmp_path: Path) -> None:
    weights = hugging_face(source)
    names = list(weights)
    files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    table = {name: files[place % 2] for place, name in enumerate(names)}
    for file in files:
        save_file({name: weights[name] for name in names if table[name] == file}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": table}))
    for path in (tmp_path, index):
        model = Tied()
        assert taken(path, model) == ""
        assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in weights.items())
    index.write_text(json.dumps({"weight_map": {**table, names[0]: "../secret.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"'../secret.safetensors', which is not a file of this folder"):
        read_weights(tmp_path)
    index.write_text(json.dumps({"weight_map": {**table, "gone": files[0]}}))
    with pytest.raises(CheckpointError, match="it names gone, which none of its files holds"):
        read_weights(tmp_path)
    index.write_text("[]")
    with pytest.raises(CheckpointError, match="its table of files cannot be read"):
        read_weights(tmp_path)


def test_what_is_not_taken_is_told(source: Tied, tmp_path: Path) -> None:
    weights = {**hugging_face(source), "pooler.weight": torch.zeros(2), "body.0.bias": torch.ones(4).bfloat16()}
    save_file(weights, tmp_path / "model.safetensors")
    model = Tied(classes=3)
    before = model.classifier.weight.detach().clone()
    told = taken(tmp_path / "model.safetensors", model)
    assert told == (
        "start_from took 9 of the model's 11 tensors from model.safetensors; not in the file, so they begin as the "
        "model makes them: classifier.weight, classifier.bias; only in the file: pooler.weight; converted from bfloat16"
    )
    assert torch.equal(model.classifier.weight, before)
    assert model.body[0].bias.dtype == torch.float32 and bool((model.body[0].bias == 1).all())


def test_another_shape_is_an_error_unless_it_is_asked_for(source: Tied, tmp_path: Path) -> None:
    save_file(hugging_face(source), tmp_path / "model.safetensors")
    model = Tied(words=9)
    shapes = r"embed.weight is \(7, 4\) in the file, \(9, 4\) in the model, lm_head.weight is .*: start_partly=True"
    with pytest.raises(CheckpointError, match=shapes):
        taken(tmp_path / "model.safetensors", model)
    told = taken(tmp_path / "model.safetensors", model, partly=True)
    assert "took 7 of the model's 9 tensors" in told and "of another shape, so not taken: embed.weight, lm_head" in told
    assert torch.equal(model.body[0].weight, source.body[0].weight)  # type: ignore[arg-type]


def test_a_file_of_which_nothing_fits_is_an_error(tmp_path: Path) -> None:
    save_file({"module.embed.weight": torch.zeros(7, 4)}, tmp_path / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"nothing for this model: it has module.embed.weight, and the model has e"
    ):
        taken(tmp_path / "model.safetensors", Tied())


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt"])
def test_a_pickle_is_named_and_not_read(name: str, tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1)}, tmp_path / name)
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(CheckpointError, match=f"{name} is a pickle, which could run any code"):
            read_weights(path)
