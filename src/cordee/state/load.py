"""Trained models back from a run's folder, without running any code that the folder brings."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

from cordee.core.damage import DAMAGE, named
from cordee.core.errors import CheckpointError, UsageError
from cordee.state.export import PROGRAM, WEIGHTS
from cordee.state.files import read_tensors
from cordee.state.index import INDEX, damaged
from cordee.state.layout import read_folder
from cordee.state.naming import few, fingerprint, load_weights, under_all_names, with_tied
from cordee.state.program import Program, Recipe

SHARDS = "model.safetensors.index.json"
"""Where Hugging Face's folders say which of several files holds which weight."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def load(run: str | os.PathLike[str], model: nn.Module | Callable[[], nn.Module] | None = None) -> nn.Module:
    """Return the trained model of a run, ready for evaluation.

    With `model`, a module or a function that makes one, the run's weights are copied into it, strictly by name. Without
    it the run's own traced model is used: it takes batches of any size and needs none of the job's source code.
    """
    weights = read_weights(run)
    if model is not None:
        built = model if isinstance(model, nn.Module) else model()
        if not isinstance(built, nn.Module):
            raise UsageError(
                f"model= gave a {type(built).__name__}; expected a torch.nn.Module or a function making one."
            )
        load_weights(built, weights)
        return built.eval()
    path = Path(run) / PROGRAM
    if not path.is_file():
        raise CheckpointError(
            f"{run} holds weights but no {PROGRAM} (the model could not be traced, or this is not a run's folder). "
            "Pass the model as well: cordee.load(run, model=...)."
        )
    header, constants = _read(path)
    with named(lambda reason: damaged(path, f"its program cannot be read ({reason})")):
        return Program(Recipe.from_json(json.loads(header["program"])), weights, constants)


def read_weights(run: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Weights from a run, a checkpoint or safetensors files, tied ones under each of their names; ours are checked."""
    path = Path(run)
    if (path / INDEX).is_file():
        snapshot = read_folder(path)
        return under_all_names(snapshot.weights(), snapshot.aliases)
    if path.name == SHARDS or (path / SHARDS).is_file():
        return _read_shards(path if path.name == SHARDS else path / SHARDS)
    _refuse_pickles(path)
    path = path / WEIGHTS if path.is_dir() else path
    if not path.is_file():
        raise CheckpointError(
            f"{path.absolute()} is not there. Name the folder of a finished run, which holds {WEIGHTS}, such a file, "
            "or a checkpoint's folder."
        )
    header, weights = _read(path)
    if "sha256" in header and header["sha256"] != fingerprint(weights):
        raise damaged(path, "its checksum does not match its content")
    with named(lambda reason: damaged(path, f"its table of tied weights cannot be read ({reason})")):
        return under_all_names(weights, json.loads(header.get("aliases", "{}")))


def _read_shards(index: Path) -> dict[str, torch.Tensor]:
    """The weights of a large model, in several files beside a table of their names."""
    with named(lambda reason: damaged(index, f"its table of files cannot be read ({reason})")):
        table = json.loads(index.read_text())["weight_map"]
        files = sorted({str(file) for file in table.values()})
    if strange := [file for file in files if Path(file).name != file]:
        raise damaged(index, f"it names {strange[0]!r}, which is not a file of this folder")
    weights = {name: one for file in files for name, one in _read(index.parent / file)[1].items()}
    if lost := [name for name in table if name not in weights]:
        raise damaged(index, f"it names {lost[0]}, which none of its files holds")
    return weights


def _refuse_pickles(path: Path) -> None:
    """Name what was found where only a pickle is."""
    pickles = [path] if path.suffix in PICKLES else []
    if path.is_dir() and not (path / WEIGHTS).is_file():
        pickles = sorted(one for one in path.iterdir() if one.suffix in PICKLES)
    if pickles:
        raise CheckpointError(
            f"{pickles[0].absolute()} is a pickle, which could run any code when it is read. Save the weights as "
            "safetensors: safetensors.torch.save_model(model, file), or save_pretrained of Hugging Face"
        )


def _read(path: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    try:
        return read_tensors(path)
    except (OSError, *DAMAGE) as problem:
        raise damaged(path, str(problem)) from problem


def take_weights(model: nn.Module, weights: Mapping[str, torch.Tensor], *, where: str, partly: bool) -> str:
    """Copy into `model` what `weights` hold for it, and return what was not taken, in words; empty if all was.

    A tied tensor needs only one of its names in the file. Numbers of another precision are converted. Another shape is
    an error unless `partly`; so is a file of which nothing fits.
    """
    own = {name: one for name, one in model.state_dict(keep_vars=True).items() if isinstance(one, torch.Tensor)}
    given = with_tied(own, weights)
    misfits = {name: _misfit(given[name], one) for name, one in own.items() if name in given}
    misfits = {name: why for name, why in misfits.items() if why}
    if misfits and not partly:
        raise CheckpointError(
            f"{where} does not fit the model: {few([f'{name} {why}' for name, why in misfits.items()])}. Build the "
            "model with these sizes, or take only what fits: start_partly=True"
        )
    fitting = {name: one for name, one in given.items() if name not in misfits}
    left = model.load_state_dict(fitting, strict=False)
    taken = [name for name in own if name in fitting and name not in left.missing_keys]
    if not taken:
        raise CheckpointError(
            f"{where} holds nothing for this model: it has {few(list(weights))}, and the model has "
            f"{few(list(own))}. The names have to be the same"
        )
    missing = [name for name in left.missing_keys if name not in misfits]
    converted = sorted({f"{fitting[name].dtype}" for name in taken if fitting[name].dtype != own[name].dtype})
    parts = [
        f"not in the file, so they begin as the model makes them: {few(missing)}" if missing else "",
        f"of another shape, so not taken: {few(list(misfits))}" if misfits else "",
        f"only in the file: {few(left.unexpected_keys)}" if left.unexpected_keys else "",
        f"converted from {' and '.join(converted)}".replace("torch.", "") if converted else "",
    ]
    told = "; ".join(part for part in parts if part)
    return f"start_from took {len(taken)} of the model's {len(own)} tensors from {where}; {told}" if told else ""


def _misfit(stored: torch.Tensor, wanted: torch.Tensor) -> str:
    """Why it cannot be copied; empty if it can."""
    if stored.shape != wanted.shape:
        return f"is {tuple(stored.shape)} in the file, {tuple(wanted.shape)} in the model"
    alike = (stored.is_complex(), stored.is_floating_point()) == (wanted.is_complex(), wanted.is_floating_point())
    return "" if alike else f"is of {stored.dtype} in the file, {wanted.dtype} in the model".replace("torch.", "")
