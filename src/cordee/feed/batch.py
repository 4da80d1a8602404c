"""A batch: the data of some samples, and which samples they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cordee.core.errors import DataError
from cordee.feed.permute import Ids
from cordee.feed.source import Fields


class Batch:
    """Samples of one step, with their place in the global batch."""

    __slots__ = ("borrowed", "digest", "epoch", "fields", "ids", "last", "positions", "step", "weight")

    def __init__(self, ids: Ids, fields: Fields) -> None:
        """Hold `fields`, the data of the samples `ids`; who asked for it fills in the rest."""
        self.ids = ids
        self.fields = fields
        self.weight = float(len(ids))
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
        held = f"the fields {', '.join(map(str, fields))}" if isinstance(fields, Mapping) else type(fields).__name__
        raise DataError(f"this batch has no {name!r}, it holds {held}: use batch.fields, or name a field {name!r}")
