"""The binary files of CIFAR-10 and CIFAR-100: a label, or a coarse and a fine one, then 3072 bytes of an image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cordee.core.errors import DataError
from cordee.feed.columns import Columns, Kind, Schema
from cordee.feed.places import Place
from cordee.feed.sources.arrow import no_rows
from cordee.feed.sources.compressed import opened
from cordee.feed.sources.seam import END, Chunk, Fault, check_on_error, is_damage

_IMAGE = 3 * 32 * 32
_AT_ONCE = 2_000
"""Rows of a chunk: 6 MB."""


@dataclass(frozen=True)
class CifarReader:
    """Reads CIFAR's binary files; a row is an image, uint8 (3, 32, 32), and its label as int64."""

    classes: int = 10
    """10, or 100: then `coarse` is the label of 20 groups of classes."""
    on_error: str = "stop"

    endings = (".bin", ".bin.gz")
    in_process = False

    def __post_init__(self) -> None:
        """Check what was given."""
        check_on_error(self.on_error)

    @property
    def key(self) -> str:
        """Which of the two forms it reads."""
        return f"cifar 1 {self.classes}{' skip' if self.on_error == 'skip' else ''}"

    def schema(self, places: Sequence[Place]) -> Schema:
        """Always the same; a file of another form is refused here, before anything is read."""
        record = self._labels + _IMAGE
        for place in places:
            if not place.name.endswith(".gz") and (not place.size or place.size % record):
                other = _IMAGE + 3 - self._labels
                hint = ""
                if place.size and not place.size % other:
                    hint = f". It has the size of CIFAR-{100 if self.classes == 10 else 10}: cordee.data.cifar"
                    hint += "100 reads it" if self.classes == 10 else "10 reads it"
                elif self.on_error == "skip":
                    continue
                else:
                    hint = ", or leave out what is cut off and count it: on_error='skip'"
                raise DataError(
                    f"{place.shown} has {place.size:,} bytes, which are no whole number of images of "
                    f"CIFAR-{self.classes} ({record} bytes each): it is cut off, or another file; fetch it again{hint}"
                )
        coarse = {"coarse": Kind("int64")} if self.classes == 100 else {}
        return {"x": Kind("uint8", (3, 32, 32)), "y": Kind("int64"), **coarse}

    def chunks(self, place: Place, schema: Schema, start: int = 0) -> Iterator[Chunk]:
        """The images of a file from number `start` on."""
        if start >= END:
            return
        try:
            for chunk in self._chunks(place, start):
                start = chunk.next
                yield chunk
        except DataError as error:
            if self.on_error == "stop" or not is_damage(error):
                raise
            yield Chunk(no_rows(schema), 0, END, (Fault(place.shown, start + 1, str(error)),))

    def _chunks(self, place: Place, start: int) -> Iterator[Chunk]:
        record = self._labels + _IMAGE
        with opened(place) as file:
            file.seek(start * record)
            if place.size == 0 and self.on_error == "skip":
                yield Chunk(no_rows(self.schema(())), 0, END, (Fault(place.shown, 1, "the file is empty"),))
            while raw := file.read(_AT_ONCE * record):
                whole = len(raw) // record
                rows = np.frombuffer(raw[: whole * record], np.uint8).reshape(-1, record)
                columns, faults = self._columns(place, rows, start)
                if len(raw) % record:
                    faults = [*faults, Fault(place.shown, start + whole + 1, "the file ends within this image")]
                if faults and self.on_error == "stop":
                    raise DataError(
                        f"{faults[0]}: the file is damaged, or another one; fetch it again, or leave such images out "
                        "and count them: on_error='skip'"
                    )
                start += whole
                yield Chunk(columns, len(columns["y"]), END if len(raw) % record else start, tuple(faults))

    @property
    def _labels(self) -> int:
        return 2 if self.classes == 100 else 1

    def _columns(self, place: Place, rows: NDArray[np.uint8], before: int) -> tuple[Columns, list[Fault]]:
        """Those whose labels are possible, and the others."""
        labels = rows[:, : self._labels].astype(np.int64)
        most = np.array([20, 100] if self.classes == 100 else [10])
        wrong = (labels >= most).any(axis=1)
        faults = [
            Fault(place.shown, before + at + 1, f"the label {labels[at].tolist()} is none of CIFAR-{self.classes}")
            for at in np.flatnonzero(wrong).tolist()
        ]
        if faults:
            rows, labels = rows[~wrong], labels[~wrong]
        columns: Columns = {"x": rows[:, self._labels :].reshape(-1, 3, 32, 32), "y": labels[:, -1]}
        return ({**columns, "coarse": labels[:, 0]} if self.classes == 100 else columns), faults
