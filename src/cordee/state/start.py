"""The weights of another model for a new one: what fits by name is taken, and what was not taken is told."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from cordee.core.errors import CheckpointError
from cordee.state.naming import few, with_tied


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
