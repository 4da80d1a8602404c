"""What people bring instead of arrays: lists, and the frames and series of pandas (or of a package that does as it)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from cordee.core.errors import DataError

LABELS = ("y", "label", "labels", "target", "targets", "class")
"""Columns that are likely to be the target, for an example in an error."""

_NUMBERS = "biuf"  # kinds of NumPy's types


def is_frame(given: Any) -> bool:
    """Whether it is a table with named columns."""
    return callable(getattr(given, "to_numpy", None)) and hasattr(given, "columns")


def is_series(given: Any) -> bool:
    """Whether it is a column of such a table."""
    return callable(getattr(given, "to_numpy", None)) and not hasattr(given, "columns")


def is_rows(given: Any) -> bool:
    """Whether it holds one row for each sample; a list of tuples or dicts holds samples."""
    rows = isinstance(given, list) and not any(isinstance(one, tuple | Mapping) for one in given[:1])
    return rows or isinstance(given, np.ndarray | torch.Tensor) or is_frame(given) or is_series(given)


def as_array(label: str, given: Any) -> Any:
    """An array of what was given: columns of a frame side by side as float32, floats of a series or list as float32.

    Arrays and tensors stay as they are. Rows count by their place; the index of a frame is not looked at.
    """
    if is_frame(given):
        columns = {str(name): given[name].to_numpy() for name in given.columns}
        if strange := [name for name, column in columns.items() if column.dtype.kind not in _NUMBERS]:
            raise DataError(
                f"{label}: the columns {', '.join(strange)} hold no numbers: leave them out, or make numbers of them "
                "(pandas.get_dummies(frame), column.astype('category').cat.codes)"
            )
        return np.stack([column.astype(np.float32) for column in columns.values()], axis=1)
    if is_series(given):
        column = given.to_numpy()
        if column.dtype.kind not in _NUMBERS:
            raise DataError(
                f"{label}: the column holds no numbers: column.astype('category').cat.codes makes classes of its values"
            )
        return column.astype(np.float32 if column.dtype.kind == "f" else np.int64)
    return _of_list(label, given) if isinstance(given, list) else given


def refuse_frame(frame: Any) -> DataError:
    """A frame alone does not say what is to be learned."""
    names = [str(name) for name in frame.columns]
    label = next((name for name in names if name.lower() in LABELS), names[-1] if names else "label")
    shown = ", ".join([*names[:8], *(["..."] if len(names) > 8 else [])])
    return DataError(
        f"a frame alone, with the columns {shown}, does not say which of them is the target. Give both apart, for "
        f"instance data=(frame.drop(columns={label!r}), frame[{label!r}]), or "
        "cordee.data.arrays of these two, which also holds out samples: validation=0.1"
    )


def refuse_many(count: int) -> DataError:
    """More than two arrays do not say what each is."""
    return DataError(
        f"{count} arrays do not say what each of them is. Name them: data={{'x': x, 'mask': mask, 'y': y}}, or "
        "cordee.data.arrays(x=x, mask=mask, y=y, validation=0.1), which also holds out samples. batch.fields has "
        "them by these names"
    )


def _of_list(label: str, given: list[Any]) -> Any:
    """Rows of equal shape; Python's numbers become what torch makes of them, float32 and int64."""
    try:
        if given and isinstance(given[0], torch.Tensor):
            return torch.stack(given)
        if given and isinstance(given[0], np.ndarray | np.generic):
            return np.stack(given)
        if not any(isinstance(one, Mapping | str) for one in given):
            return torch.tensor(given)
    except (ValueError, TypeError, RuntimeError):
        pass
    kind = type(given[0]).__name__ if given else "values"
    raise DataError(
        f"{label}: this list of {len(given)} {kind} is not a table of numbers with rows of equal length: pad the "
        "rows, make numbers of words, or give samples with a function that puts them together: "
        "cordee.data.dataset(samples, collate=...)"
    )
