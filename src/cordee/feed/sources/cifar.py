"""The binary files of CIFAR-10 and CIFAR-100: a label, or a coarse and a fine one, then 3072 bytes of an image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cordee.core.errors import DataError
from cordee.feed.columns import Columns, Kind, Schema
from cordee.feed.places import Place
from cordee.feed.sources.compressed import opened
from cordee.feed.sources.seam import Chunk, Fault

_IMAGE = 3 * 32 * 32
_AT_ONCE = 2_000
"""Rows of a chunk: 6 MB."""


@dataclass(frozen=True)
class CifarReader:
    """Reads CIFAR's binary files; a row is an image, uint8 (3, 32, 32), and its label as int64."""

    classes: int = 10
    """10, or 100: then `coarse` is the label of 20 groups of classes."""

    endings = (".bin", ".bin.gz")
    in_process = False

    @property
    def key(self) -> str:
        """Which of the two forms it reads."""
        return f"cifar 1 {self.classes}"

    def schema(self, places: Sequence[Place]) -> Schema:
        """Always the same; a file of another size is refused here, before anything is read."""
        record = self._labels + _IMAGE
        for place in places:
            if not place.url.endswith(".gz") and (not place.size or place.size % record):
                other = _IMAGE + 3 - self._labels
                hint = ""
                if place.size and not place.size % other:
                    hint = f". It has the size of CIFAR-{100 if self.classes == 10 else 10}: cordee.data.cifar"
                    hint += "100 reads it" if self.classes == 10 else "10 reads it"
                raise DataError(
                    f"{place.url} has {place.size:,} bytes, which are no whole number of images of "
                    f"CIFAR-{self.classes} ({record} bytes each): it is cut off, or another file; fetch it again{hint}"
                )
        coarse = {"coarse": Kind("int64")} if self.classes == 100 else {}
        return {"x": Kind("uint8", (3, 32, 32)), "y": Kind("int64"), **coarse}

    def chunks(self, place: Place, schema: Schema, start: int = 0) -> Iterator[Chunk]:
        """The images of a file from number `start` on."""
        record = self._labels + _IMAGE
        with opened(place) as file:
            file.seek(start * record)
            while raw := file.read(_AT_ONCE * record):
                if len(raw) % record:
                    row = start + len(raw) // record + 1
                    raise DataError(str(Fault(place.url, row, "the file ends within this image: fetch it again")))
                rows = np.frombuffer(raw, np.uint8).reshape(-1, record)
                start += len(rows)
                yield Chunk(self._columns(place, rows, start - len(rows)), len(rows), start)

    @property
    def _labels(self) -> int:
        return 2 if self.classes == 100 else 1

    def _columns(self, place: Place, rows: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], before: int) -> Columns:
        labels = rows[:, : self._labels].astype(np.int64)
        most = np.array([20, 100] if self.classes == 100 else [10])
        if len(wrong := np.flatnonzero((labels >= most).any(axis=1))):
            found = labels[wrong[0]].tolist()
            raise DataError(
                str(Fault(place.url, before + int(wrong[0]) + 1, f"the label {found} is none of CIFAR-{self.classes}"))
                + ": the file is damaged, or another one; fetch it again"
            )
        columns: Columns = {"x": rows[:, self._labels :].reshape(-1, 3, 32, 32), "y": labels[:, -1]}
        return {**columns, "coarse": labels[:, 0]} if self.classes == 100 else columns
