"""Samples that lie in arrays: numpy or torch, in memory or mapped from a file."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cordee.core.errors import DataError
from cordee.feed.permute import Ids
from cordee.feed.source import Fields, Traits, check_ids, digest_of, spread

Array = NDArray[Any] | torch.Tensor
"""What counts as an array; its first dimension counts samples."""

LABELS = ("y", "label", "labels", "target", "targets", "class")
"""Columns that are likely to be the target, for an example in an error."""
_NUMBERS = "biuf"  # kinds of NumPy's types
_SAMPLED_BYTES = 4_096
AT_ONCE = 2**26
"""Bytes that are on their way to a device at a time."""


class ArraySource:
    """Arrays of equal length; a batch is a dict if they were given by name, a tuple if not."""

    def __init__(self, arrays: Mapping[str, Array] | Sequence[Array], *, scaled: Collection[str] = ()) -> None:
        """Keep the arrays as they are; fields named in `scaled` hold uint8 and come out as float32 in 0 .. 1."""
        self.names = tuple(arrays) if isinstance(arrays, Mapping) else None
        labelled = arrays if isinstance(arrays, Mapping) else {str(place): one for place, one in enumerate(arrays)}
        self._columns = [_Column(label, as_array(label, value), label in scaled) for label, value in labelled.items()]
        lengths = {column.label: len(column.rows) for column in self._columns}
        if not lengths or 0 in lengths.values():
            raise DataError(f"there are no samples: the arrays have the lengths {lengths}, at least 1 is needed")
        if len(set(lengths.values())) > 1:
            given = ", ".join(f"{label}: {length}" for label, length in lengths.items())
            raise DataError(f"the arrays differ in length ({given}): each needs one row a sample")

    def __len__(self) -> int:
        """The length of the arrays."""
        return len(self._columns[0].rows)

    @property
    def traits(self) -> Traits:
        """Rows of arrays in memory."""
        return Traits(runs_user_code=False, table=self)

    @cached_property
    def fingerprint(self) -> str:
        """Made of names, shapes, types and the bytes of 64 rows from first to last."""
        parts: list[bytes | NDArray[Any]] = []
        for column in self._columns:
            parts.append(f"{column.label} {column.rows.shape} {column.rows.dtype} {column.dtype}".encode())
            parts += [np.ravel(column.rows[row]).view(np.uint8)[:_SAMPLED_BYTES] for row in spread(len(self))]
        return digest_of(parts)

    def buffers(self, count: int, *, pin: bool = False) -> Fields:
        """Memory for `count` rows of every array."""
        return self._structure([column.buffer(count, pin) for column in self._columns])

    def gather(self, ids: Ids, out: Fields | None = None) -> Fields:
        """The rows `ids` of every array; with `out` no memory is allocated, which is what makes it fast."""
        check_ids(ids, len(self))
        if out is None:
            out = self.buffers(len(ids))
        targets = out.values() if isinstance(out, dict) else out
        filled = [column.fill(ids, target) for column, target in zip(self._columns, targets, strict=True)]
        return self._structure(filled)

    def columns(self) -> list[tuple[str, NDArray[Any]]]:
        """Every array by its name or place, as it lies in memory."""
        return [(column.label, column.rows) for column in self._columns]

    @property
    def nbytes(self) -> int:
        """Memory that all samples take."""
        return sum(column.rows.nbytes for column in self._columns)

    def tensors(self, device: torch.device) -> list[torch.Tensor]:
        """Every array on a device, of the type it has here; `structured` makes batches of rows of them."""
        return [column.on(device) for column in self._columns]

    def structured(self, rows: list[torch.Tensor]) -> Fields:
        """Rows of `tensors` as a batch: scaled where that was asked for, by name if the arrays have names."""
        pairs = zip(self._columns, rows, strict=True)
        return self._structure([tensor.float() / 255 if column.scaled else tensor for column, tensor in pairs])

    def _structure(self, tensors: list[torch.Tensor]) -> Fields:
        return tuple(tensors) if self.names is None else dict(zip(self.names, tensors, strict=True))


class _Column:
    """One array: its rows as numpy sees them, and the type its batches have in torch."""

    def __init__(self, label: str, value: Array, scaled: bool) -> None:
        self.label = label
        self.rows = _rows(label, value)
        self.dtype = value.dtype if isinstance(value, torch.Tensor) else _torch_dtype(label, self.rows)
        self.scaled = scaled
        if scaled and self.dtype != torch.uint8:
            raise DataError(f"{label}: scale=True needs uint8 values (0 to 255), not {self.dtype}; leave scale out")
        if scaled:
            self.dtype = torch.float32

    def buffer(self, count: int, pin: bool) -> torch.Tensor:
        return torch.empty((count, *self.rows.shape[1:]), dtype=self.dtype, pin_memory=pin)

    def on(self, device: torch.device) -> torch.Tensor:
        """What torch may not write into, such as mapped rows, goes through a buffer, some of it at a time."""
        if self.rows.flags.writeable:
            tensor = torch.from_numpy(self.rows).to(device)
        else:
            each = max(1, AT_ONCE // max(1, self.rows.nbytes // len(self.rows)))
            buffer = np.empty((min(each, len(self.rows)), *self.rows.shape[1:]), self.rows.dtype)
            tensor = torch.empty(self.rows.shape, dtype=torch.from_numpy(buffer).dtype, device=device)
            for start in range(0, len(self.rows), each):
                part = self.rows[start : start + each]
                buffer[: len(part)] = part
                tensor[start : start + len(part)].copy_(torch.from_numpy(buffer[: len(part)]))
        return tensor if self.scaled else tensor.view(self.dtype)

    def fill(self, ids: Ids, target: torch.Tensor) -> torch.Tensor:
        filled = target[: len(ids)] if len(target) != len(ids) else target
        memory = _as_numpy(filled)
        if self.scaled:
            np.divide(self.rows.take(ids, axis=0), np.float32(255), out=memory)
        else:
            # Ids are checked; any mode but "raise" lets numpy write into `out` without a copy in between.
            np.take(self.rows, ids, axis=0, out=memory, mode="clip")
        return filled


def _rows(label: str, value: Array) -> NDArray[Any]:
    """The array as numpy, rows one after the other, in this machine's byte order."""
    if isinstance(value, torch.Tensor):
        value = _as_numpy(value.detach().cpu().contiguous())
    rows = np.asarray(value)
    if rows.ndim == 0:
        raise DataError(f"{label}: a single value is no array of samples; its first dimension must count them")
    return np.ascontiguousarray(rows, dtype=rows.dtype.newbyteorder("="))


def _as_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """The tensor's memory as numpy; types that numpy lacks (bfloat16, float8) are moved as whole numbers."""
    try:
        array: NDArray[Any] = tensor.numpy()
    except TypeError:
        array = tensor.view({1: torch.uint8, 2: torch.int16}[tensor.element_size()]).numpy()
    return array


def _torch_dtype(label: str, rows: NDArray[Any]) -> torch.dtype:
    try:
        return torch.from_numpy(np.empty(0, dtype=rows.dtype)).dtype
    except TypeError:
        raise DataError(
            f"{label}: values of type {rows.dtype} cannot become a tensor; convert them to numbers. Of texts that "
            "name classes, cordee.data.table({'x': x, 'y': y}, label='y') makes them, in npy and npz files "
            "cordee.data.array_files(path).labelled('y')"
        ) from None


def is_frame(given: Any) -> bool:
    """Whether it is a table with named columns."""
    return callable(getattr(given, "to_numpy", None)) and hasattr(given, "columns")


def is_arrow(given: Any) -> bool:
    """Whether it is a table of Arrow, or a batch of one."""
    return type(given).__module__.partition(".")[0] == "pyarrow" and hasattr(given, "schema")


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
    """A frame or table alone does not say what is to be learned."""
    names = [str(name) for name in (frame.schema.names if is_arrow(frame) else frame.columns)]
    label = next((name for name in names if name.lower() in LABELS), names[-1] if names else "label")
    shown = ", ".join([*names[:8], *(["..."] if len(names) > 8 else [])])
    apart = "" if is_arrow(frame) else f"; or give both apart, data=(frame.drop(columns={label!r}), frame[{label!r}])"
    return DataError(
        f"a table alone, with the columns {shown}, does not say which of them is the target. Name it: "
        f"data=cordee.data.table(frame, label={label!r}), whose steps make numbers of texts and hold out samples, such "
        f"as .one_hot().split(0.8, 0.1, 0.1){apart}"
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
