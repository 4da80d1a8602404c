"""What tests of stores share: a reader of tiny files of our own form, and recipes of them."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cordee.feed.columns import Columns, Kind, Ragged, Schema
from cordee.feed.places import Place
from cordee.feed.sources.seam import Chunk, Fault
from cordee.feed.store.build import build
from cordee.feed.store.layout import Manifest
from cordee.feed.store.recipe import Recipe

if TYPE_CHECKING:  # it imports torch, which processes of a build have no use for
    from cordee.feed.store.opened import StoreSource

KINDS: Schema = {
    "id": Kind("int64"),
    "x": Kind("float32", (3,)),
    "image": Kind("uint8", (2, 2)),
    "flag": Kind("bool"),
    "words": Kind("text", ragged=True),
    "tokens": Kind("int32", ragged=True),
}


def columns_of(numbers: NDArray[np.int64]) -> Columns:
    """Columns of all kinds, made of the rows' numbers."""
    texts = ["" if number % 7 == 0 else f"wört {number}" for number in numbers.tolist()]
    tokens = [np.arange(number % 5, dtype=np.int32) + number for number in numbers.tolist()]
    image = (numbers[:, None, None] + np.arange(4).reshape(2, 2)).astype(np.uint8)
    return {
        "id": numbers.copy(),
        "x": (numbers[:, None] * np.array([1.0, 0.5, -1.0])).astype(np.float32),
        "image": image,
        "flag": numbers % 2 == 0,
        "words": Ragged.of(texts) if texts else Ragged(np.zeros(1, np.int64), np.zeros(0, np.uint8), text=True),
        "tokens": Ragged.of(tokens) if tokens else Ragged(np.zeros(1, np.int64), np.zeros(0, np.int32)),
    }


@dataclass(frozen=True)
class Counter:
    """Reads files that hold two numbers: the first row, and how many there are."""

    chunk: int = 10
    kinds: Schema = field(default_factory=lambda: KINDS)
    bad: tuple[int, ...] = ()
    """Rows that cannot be read, which are left out."""
    in_process: bool = False
    endings: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"counter {sorted(self.kinds)} {self.bad}"

    def schema(self, places: Sequence[Place]) -> Schema:
        return dict(self.kinds)

    def chunks(self, place: Place, schema: Schema, start: int = 0) -> Iterator[Chunk]:
        first, count = map(int, Path(place.url).read_text().split())
        for at in range(start, count, self.chunk):
            numbers = np.arange(at, min(at + self.chunk, count), dtype=np.int64) + first
            good = np.array([one for one in numbers.tolist() if one not in self.bad], np.int64)
            faults = tuple(Fault(place.key, one, "bad") for one in numbers.tolist() if one in self.bad)
            columns = {"id": good} if list(self.kinds) == ["id"] else columns_of(good)
            yield Chunk({name: columns[name] for name in self.kinds}, len(good), at + len(numbers), faults)


class LetsGo(Counter):
    """Is read in threads."""

    lets_go = True


class Divided(Counter):
    """May be read from any of its chunks on."""

    def edges(self, place: Place, schema: Schema) -> Sequence[int]:
        count = int(Path(place.url).read_text().split()[1])
        return [*range(0, count, self.chunk), count]


class Slow(Counter):
    """Takes its time, so that a build can be killed in the middle."""

    def chunks(self, place: Place, schema: Schema, start: int = 0) -> Iterator[Chunk]:
        for chunk in super().chunks(place, schema, start):
            time.sleep(0.005)
            yield chunk


class Wide(Counter):
    """Rows of 500 bytes."""

    def schema(self, places: Sequence[Place]) -> Schema:
        return {"x": Kind("uint8", (500,))}

    def chunks(self, place: Place, schema: Schema, start: int = 0) -> Iterator[Chunk]:
        for chunk in Counter(self.chunk, {"id": KINDS["id"]}).chunks(place, schema, start):
            yield chunk._replace(columns={"x": np.zeros((chunk.rows, 500), np.uint8)})


def place_of(path: Path, first: int, count: int, size: int = 100) -> Place:
    """A file of the `Counter`; its size is what the build goes by."""
    path.write_text(f"{first} {count}")
    return Place(str(path), path.name, size, "")


def places_of(folder: Path, counts: Sequence[int], size: int = 100) -> tuple[Place, ...]:
    """Files of so many rows each, numbered one after the other."""
    folder.mkdir(exist_ok=True)
    starts = np.concatenate([[0], np.cumsum(counts)])
    return tuple(
        place_of(folder / f"{at:05}", int(first), count, size)
        for at, (first, count) in enumerate(zip(starts, counts, strict=False))
    )


@dataclass(frozen=True)
class Thirds:
    """Every third row is for validation, others for training."""

    key: str = "thirds"

    def check(self, schema: Schema) -> None:
        assert "id" in schema

    def sets(self, place: Place, columns: Columns, origins: NDArray[np.uint64]) -> NDArray[np.uint8]:
        ids = columns["id"]
        assert not isinstance(ids, Ragged)
        return (ids % 3 == 0).astype(np.uint8)


def built(recipe: Recipe, out: Path, **more: Any) -> Manifest:
    """Without waiting for the disk."""
    return build(recipe, out, durable=False, **{"processes": 0, **more})


def all_rows(source: StoreSource) -> Columns:
    """Of a set, in their order."""
    return source.rows(np.arange(len(source), dtype=np.int64))


def check_rows(source: StoreSource, numbers: NDArray[np.int64]) -> None:
    """The set holds the rows of these numbers, in this order."""
    expected = columns_of(numbers)
    for name, column in all_rows(source).items():
        same = expected[name]
        if isinstance(column, Ragged) and isinstance(same, Ragged):
            np.testing.assert_array_equal(column.offsets, same.offsets)
            np.testing.assert_array_equal(column.values, same.values)
            assert column.text == same.text
        else:
            np.testing.assert_array_equal(column, same)
            assert column.dtype == same.dtype


def contents(folder: Path) -> dict[str, int]:
    """CRC of every file of a store."""
    return {
        str(path.relative_to(folder)): zlib.crc32(path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def opened(out: Path, name: str = "train") -> StoreSource:
    """A set of a store."""
    from cordee.feed.store.opened import open_store

    return open_store(out).sets[name]
