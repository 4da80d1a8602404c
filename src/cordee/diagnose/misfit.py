"""An exception of the user's model, loss or metric in words: where it came from, and what to do about it.

Advice is only given for errors that tell of shapes, types or classes; for other errors in the user's code (a
misspelt attribute, say) the line is enough.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from pathlib import Path

import torch
from torch import Tensor, nn

from cordee.core.errors import DataError, ModelError
from cordee.feed.batch import Batch, dtype_name, named_tensors, shapes

OURS = tuple(f"{folder}{os.sep}" for folder in (Path(__file__).resolve().parents[1], Path(torch.__file__).parent))
"""Code that no user can fix."""
OF_SHAPES = ("mat1", "size", "shape", "dimension", "channels", "target tensor", "elements", "expected input")
OF_TYPES = ("dtype", "scalar type", "type (", "can't be cast")
TO_INT64 = "convert them with .astype(np.int64) (a tensor: .long())"
TO_FLOAT32 = "convert it with .astype(np.float32) (a tensor: .float())"
FIT = "Change the model's first or last layer, the loss, or the data so that they fit"


def explain_misfit(error: Exception, model: nn.Module, batch: Batch) -> ModelError:
    """The error to raise for one that the model or the loss raised for this batch."""
    advice = advise(error, model, batch)
    return ModelError(
        f"the model or the loss {'does not accept' if advice else 'fails with'} a batch of the data.\n"
        f"  a batch: {shapes(batch.fields)}\n  the error: {describe_error(error)}" + (f"\n{advice}" if advice else "")
    )


def describe_error(error: Exception) -> str:
    """The exception on one line, with the last line of the user's code on the way to it, if there is one.

    Installed packages only count if there is no file of the user's own.
    """
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [one for one in frames if not one.filename.startswith((*OURS, "<frozen"))]
    own = [one for one in theirs if not _installed(one.filename)] or theirs
    places = [f" ({os.path.relpath(one.filename)}, line {one.lineno}, in {one.name})" for one in own[-1:]]
    return f"{type(error).__name__}: {error}{''.join(places)}"


def advise(error: Exception, model: nn.Module, batch: Batch) -> str:
    """What to change; empty where the error has nothing to do with how model, loss and data fit together."""
    text = str(error).lower()
    if isinstance(error, IndexError) and "target" in text and "out of bounds" in text:
        target = _field(batch, "y")
        most = f"; the largest of this batch is {int(target.max())}" if target is not None and target.numel() else ""
        return f"Classes count from 0, and the model's last layer needs an output for each{most}"
    if isinstance(error, IndexError) and "index out of range in self" in text:
        return "A number in the data is beyond the size of an embedding: make that larger, or look at the data"
    if not isinstance(error, RuntimeError | ValueError):
        return ""
    if any(word in text for word in OF_TYPES):
        return _advise_on_types(text, model, batch)
    return FIT if any(word in text for word in OF_SHAPES) else ""


def _advise_on_types(text: str, model: nn.Module, batch: Batch) -> str:
    weights = next((one for one in model.parameters() if one.is_floating_point()), torch.empty(0))
    doubles = [name for name, one in named_tensors(batch.fields) if one.dtype == torch.float64]
    name = "y" if "cast" in text else "x"
    field = _field(batch, name)
    if "indices" in text:
        return f"An embedding takes whole numbers: {TO_INT64}"
    if doubles and weights.dtype == torch.float32:
        which = f"{' and '.join(doubles)} of the data {'are' if len(doubles) > 1 else 'is'} float64"
        return f"{which}, the model's weights are float32: {TO_FLOAT32}"
    if "target dtype" in text or "long but found" in text:
        return f"Classes as targets are int64: {TO_INT64}; in a chain: .classes('the label')"
    if field is not None and not field.is_floating_point():
        return f"{name} of the data is {dtype_name(field)}, the model computes in {dtype_name(weights)}: {TO_FLOAT32}"
    return FIT


def explain_broadcast(output: object, batch: Batch) -> str:
    """What to say if output and target have shapes that grow against each other, (n, 1) and (n,); else empty."""
    target = _field(batch, "y")
    if target is None or not isinstance(output, Tensor):
        return ""
    try:
        common = torch.broadcast_shapes(output.shape, target.shape)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return ""
    if common in (output.shape, target.shape):
        return ""
    return (
        f"The cause is broadcasting: an output of shape {tuple(output.shape)} and a target of {tuple(target.shape)} "
        f"become {tuple(common)}, and every output is compared with every target. Give both one shape: y[:, None] in "
        "the data, or output.squeeze(1) in the loss"
    )


def _field(batch: Batch, name: str) -> Tensor | None:
    try:
        field = batch.y if name == "y" else batch.x
    except DataError:
        return None
    return field if isinstance(field, Tensor) else None


def _installed(file: str) -> bool:
    packages = "site-packages" in file or "dist-packages" in file
    return packages or file.startswith(sysconfig.get_path("stdlib") + os.sep)


def is_users(thing: object) -> bool:
    """Whether a function, class or module is the user's own code: neither installed nor ours."""
    code = getattr(thing, "__code__", None)
    file = code.co_filename if code is not None else getattr(thing, "__file__", None)
    if file is None:  # a class; one without a module was made in a notebook or a text
        module = sys.modules.get(getattr(thing, "__module__", None) or "")
        file = getattr(module, "__file__", None)
        if module is not None and file is None:
            return module.__name__ == "__main__"
    return file is None or not (file.startswith((*OURS, "<frozen")) or _installed(file))
