"""What all events of a run have: their kind, their moment, and bounds of the numbers in them."""

from __future__ import annotations

from typing import Annotated

import msgspec

# Within these bounds the viewers' sums and lengths neither overflow nor lose whole numbers.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Number = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
"""Seconds since 1970."""


def _kind(name: str) -> str:
    return name.removesuffix("Event").lower()


class Event(msgspec.Struct, kw_only=True, tag_field="event", tag=_kind, forbid_unknown_fields=True):
    """One event; in a record `event` holds its kind."""

    time: Moment = 0.0
    """When the record was written, in seconds since 1970; 0 until it is."""

    @property
    def kind(self) -> str:
        """Its name in the record: `step` of a `StepEvent`."""
        return str(self.__struct_config__.tag)

    @property
    def moment(self) -> float:
        """When it happened, as near as the record tells."""
        return getattr(self, "at", None) or self.time
