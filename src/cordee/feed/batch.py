"""A batch: the data of some samples, and which samples they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cordee.core.errors import DataError, JobError
from cordee.feed.permute import SPREAD, Ids, mix, random_bits
from cordee.feed.source import Fields

TARGETS = ("labels", "label", "targets", "target")
"""What the target is called where it is not called y."""
_DROPPED_BITS = np.uint64(64 - 24)  # a float32 below 1 holds 24 bits evenly


class Batch:
    """Samples of one step, with their place in the global batch."""

    __slots__ = ("borrowed", "digest", "epoch", "fields", "ids", "last", "positions", "seed", "step", "weight")

    def __init__(self, ids: Ids, fields: Fields) -> None:
        """Hold `fields`, the data of the samples `ids`; who asked for it fills in the rest."""
        self.ids = ids
        self.fields = fields
        self.weight = float(len(ids))
        self.seed = 0
        """Of the order that it belongs to: a job's or a session's seed."""
        self.epoch = 0
        self.step = 0
        self.positions: range | Ids = range(len(ids))
        self.borrowed = False
        """The share was empty: the one sample in here is borrowed, weighs nothing and counts nowhere."""
        self.digest: int | None = None
        """Of its ids at their positions, if it is known already."""
        self.last = True
        """The last micro-batch of its step."""

    def __len__(self) -> int:
        """How many samples it holds."""
        return len(self.ids)

    @property
    def x(self) -> Any:
        """What the model is given: the field "x", the first of a tuple, or the only tensor."""
        return self._field("x", 0)

    @property
    def y(self) -> Any:
        """What the loss compares with: the field "y", or the second of a tuple."""
        return self._field("y", 1)

    def _field(self, name: str, place: int) -> Any:
        fields = self.fields
        if isinstance(fields, Mapping) and name in fields:
            return fields[name]
        if isinstance(fields, tuple | list) and place < len(fields):
            return fields[place]
        if place == 0 and not isinstance(fields, Mapping | tuple | list):
            return fields
        raise DataError(
            f"this batch has no {name!r}, it holds {_names(fields)}: use batch.fields, or name a field {name!r}; of a "
            "table, a data set of Hugging Face or a dict of columns, cordee.data.table(..., label=...) makes x and y, "
            "of any other dataset cordee.data.rows(..., label=...)"
        )


def target_of(batch: Batch, name: str | int | None) -> Any:
    """What loss and metrics compare an output with: the field `name`; by default y, or the only one of `TARGETS`."""
    fields = batch.fields
    if name is not None:
        if isinstance(fields, Mapping) and name in fields:
            return fields[name]
        if isinstance(fields, tuple | list) and isinstance(name, int) and 0 <= name < len(fields):
            return fields[name]
        if not isinstance(fields, Mapping) and name == "x":
            return batch.x
        raise JobError(f"target={name!r}: a batch holds {_names(fields)}. Name one of them")
    if not isinstance(fields, Mapping) or "y" in fields:
        return batch.y
    found = [one for one in TARGETS if one in fields]
    if len(found) == 1:
        return fields[found[0]]
    which = f"both {' and '.join(found)}" if found else "no field y"
    raise JobError(f"a batch holds {_names(fields)}: {which}. Say which one is the target: target='...'")


def _names(fields: Any) -> str:
    if isinstance(fields, Mapping):
        return f"the fields {', '.join(map(str, fields))}"
    return f"the fields 0 to {len(fields) - 1}, without names" if isinstance(fields, tuple | list) else "one tensor, x"


def named_tensors(fields: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors in the data of a batch, each with the name of its field."""
    if isinstance(fields, Tensor):
        yield name or "x", fields
    elif isinstance(fields, Mapping):
        for key, value in fields.items():
            yield from named_tensors(value, f"{name}.{key}" if name else str(key))
    elif isinstance(fields, tuple | list):
        for place, value in enumerate(fields):
            yield from named_tensors(value, f"{name}.{place}" if name else f"field {place}")


def dtype_name(tensor: Tensor) -> str:
    """`float32`, for instance."""
    return str(tensor.dtype).removeprefix("torch.")


def shapes(fields: Any) -> str:
    """Shape and type of all that is in there."""
    if isinstance(fields, Tensor):
        return f"{tuple(fields.shape)} {dtype_name(fields)}"
    if isinstance(fields, Mapping):
        return ", ".join(f"{name} {shapes(value)}" for name, value in fields.items())
    if isinstance(fields, tuple | list):
        return ", ".join(shapes(value) for value in fields)
    return type(fields).__name__


def draws(batch: Batch, count: int, *, seed: int = 0) -> Tensor:
    """Draw `count` numbers evenly from [0, 1) for every sample of the batch: float32 of shape (samples, count).

    They depend on the seed of the job or session, the epoch and the sample alone, not on the worker, the share or what
    was drawn before, and lie on the device of the batch: augmentation made of them is the same on any number of
    workers, and after a resume. Another `seed` makes other numbers of the same samples. Where `steps_per_epoch` lets a
    sample come twice in an epoch, it draws the same both times.
    """
    if count < 1:
        raise ValueError(f"count={count}: at least 1 number for every sample can be drawn")
    of_job = (int(batch.seed),) if batch.seed else ()  # with seed 0, what former versions drew
    keys = np.array(random_bits(count, "sample", seed, batch.epoch, *of_job), dtype=np.uint64)
    places = (np.asarray(batch.ids).astype(np.uint64) + np.uint64(1)) * SPREAD
    bits = mix(places[:, None] + keys) >> _DROPPED_BITS
    numbers = torch.from_numpy(bits.astype(np.float32) * np.float32(2**-24))
    device = next((tensor.device for _, tensor in named_tensors(batch.fields)), torch.device("cpu"))
    if device.type == "cuda":  # a copy from memory that is not pinned waits until the GPU has done all before it
        return numbers.pin_memory().to(device, non_blocking=True)
    return numbers.to(device)
