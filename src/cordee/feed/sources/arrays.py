"""Arrays in files, a few MiB at a time: numpy's npy and npz, and the IDX form of MNIST, near or far, of any size.

An array's first dimension counts rows. Nothing is ever unpickled.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cordee.core.errors import DataError
from cordee.feed.columns import TEXT, Column, Ragged, Schema, slice_of
from cordee.feed.places import Place
from cordee.feed.sources.arrow import no_rows
from cordee.feed.sources.compressed import opened
from cordee.feed.sources.heads import NPY, ZIP, Head, idx_head, npy_head
from cordee.feed.sources.seam import END, Chunk, Fault, check_on_error, is_damage

CHUNK_BYTES = 1 << 22
"""Of all arrays of a chunk together."""
LARGEST_TURNED = 1 << 30
"""Bytes of an array in Fortran's order, which has to be read whole."""


@dataclass(frozen=True)
class ArrayReader:
    """Reads npy, npz and IDX files, gzip'ed or not, told by their first bytes; a row is one of all arrays of a file."""

    name: str = "x"
    """The column of a file that holds one array; those of an npz file have their own names."""
    beside: tuple[tuple[str, tuple[tuple[str, Place], ...]], ...] = ()
    """More columns, from files of their own: for each, by the key of the first column's file, the file beside it."""
    on_error: str = "stop"

    endings = (".npy", ".npz", "-ubyte", "-ubyte.gz", ".idx", ".idx.gz")
    in_process = False

    def __post_init__(self) -> None:
        """Check what was given."""
        check_on_error(self.on_error)

    @property
    def key(self) -> str:
        """Which columns it makes, of which files."""
        files = [(name, [(key, place.key, place.mark) for key, place in pairs]) for name, pairs in self.beside]
        return f"arrays 1 {self.name} {files}{' skip' if self.on_error == 'skip' else ''}"

    def schema(self, places: Sequence[Place]) -> Schema:
        """The columns of the first file that can be read; the others are looked at when they are read."""
        if not places:
            raise DataError("there are no files of arrays")
        for number, place in enumerate(places):
            try:
                with self._arrays(place) as arrays:
                    return {name: array.head.kind for name, array in arrays.items()}
            except DataError as error:
                if self.on_error == "stop" or not is_damage(error) or number + 1 == len(places):
                    raise
        raise AssertionError

    def chunks(self, place: Place, schema: Schema, start: int = 0) -> Iterator[Chunk]:
        """The rows of a file from number `start` on."""
        if start >= END:
            return
        try:
            for chunk in self._chunks(place, schema, start):
                start = chunk.next
                yield chunk
        except DataError as error:
            if self.on_error == "stop" or not is_damage(error):
                raise
            yield Chunk(no_rows(schema), 0, END, (Fault(place.shown, start + 1, str(error)),))

    def _chunks(self, place: Place, schema: Schema, start: int) -> Iterator[Chunk]:
        with self._arrays(place) as arrays:
            self._check(place, arrays, schema)
            rows = next(iter(arrays.values())).head.rows
            most = max(1, CHUNK_BYTES // max(1, sum(array.head.row_bytes for array in arrays.values())))
            for array in arrays.values():
                array.skip(start)
            for at in range(start, rows, most):
                count = min(most, rows - at)
                columns = {name: arrays[name].take(count, cut=self.on_error == "skip") for name in schema}
                there = min(len(column) for column in columns.values())
                if there < count:  # of the shortest array; whole rows alone
                    fault = Fault(place.shown, at + there + 1, f"the file ends; {rows - at - there:,} rows are missing")
                    columns = {name: slice_of(column, 0, there) for name, column in columns.items()}
                    yield Chunk(columns, there, END, (fault,))
                    return
                yield Chunk(columns, count, at + count)

    @contextmanager
    def _arrays(self, place: Place) -> Iterator[dict[str, _Array]]:
        """The arrays of a file and of those beside it, each open at its first row."""
        with ExitStack() as stack:
            arrays = stack.enter_context(_arrays_of(place, self.name, self.on_error == "skip"))
            for name, pairs in self.beside:
                found = next((one for key, one in pairs if key == place.key), None)
                if found is None:
                    raise DataError(f"no file for column {name!r} was given beside {place.shown}")
                arrays = {**arrays, **stack.enter_context(_arrays_of(found, name, self.on_error == "skip"))}
            lengths = {name: array.head.rows for name, array in arrays.items()}
            if len(set(lengths.values())) > 1:
                given = ", ".join(f"{name}: {length}" for name, length in lengths.items())
                raise DataError(
                    f"{place.shown}: its arrays differ in length ({given}), each needs one row per sample. Files "
                    "that hold training and test data side by side are read by cordee.data.npz"
                )
            yield arrays

    def _check(self, place: Place, arrays: dict[str, _Array], schema: Schema) -> None:
        kinds = {name: array.head.kind for name, array in arrays.items()}
        if missing := schema.keys() - kinds.keys():
            raise DataError(f"{place.shown} has no array {sorted(missing)[0]!r}, which the first file has")
        for name, kind in schema.items():
            if kinds[name] != kind:
                raise DataError(f"{place.shown}: {name} is {kinds[name]}, in the first file it is {kind}")


class _Array:
    """An array in a file that is read from its first row to its last."""

    def __init__(self, file: BinaryIO, head: Head, where: str) -> None:
        """`file` stands behind the head."""
        self.head, self._file, self._where = head, file, where
        self._turned: NDArray[Any] | None = None
        self._at = 0
        if head.fortran:
            if head.rows * head.row_bytes > LARGEST_TURNED:
                raise DataError(
                    f"{where} is an array of {head.rows * head.row_bytes:,} bytes in Fortran's order, whose rows do "
                    "not lie one after the other; write it again: numpy.save(path, numpy.ascontiguousarray(array))"
                )
            whole = self._read(head.rows * head.row_bytes)
            self._turned = np.frombuffer(whole, head.dtype).reshape(head.rows, *head.shape, order="F")

    def skip(self, rows: int) -> None:
        """Leave out so many rows."""
        if rows and self._turned is None:
            self._file.seek(rows * self.head.row_bytes, 1)
        self._at += rows

    def take(self, rows: int, *, cut: bool = False) -> Column:
        """The next rows, in this machine's byte order; if the file may be `cut` off, as many whole rows as it has."""
        head = self.head
        if self._turned is not None:
            part = self._turned[self._at : self._at + rows]
        else:
            raw = self._read(rows * head.row_bytes, cut=cut)
            if len(raw) < rows * head.row_bytes:
                rows = len(raw) // head.row_bytes
            part = np.frombuffer(raw[: rows * head.row_bytes], head.dtype).reshape(rows, *head.shape)
        self._at += rows
        if head.kind.dtype == TEXT:
            return Ragged.of([one if isinstance(one, str | bytes) else str(one) for one in part.tolist()])
        return np.ascontiguousarray(part, dtype=head.dtype.newbyteorder("="))

    def _read(self, size: int, *, cut: bool = False) -> bytes:
        raw = self._file.read(size)
        if len(raw) < size and not cut:
            raise DataError(
                f"{self._where} ends {size - len(raw):,} bytes before its head says: it is cut off; fetch it again, or "
                "use what is there and count what is missing: on_error='skip'"
            )
        return raw


@contextmanager
def _arrays_of(place: Place, name: str, whole: bool) -> Iterator[dict[str, _Array]]:
    """The arrays of one file by name; `whole`: checksums are compared before anything is read."""
    with opened(place) as file:
        beginning = file.read(4)
        file.seek(0)
        if beginning[:4] == ZIP:
            yield from _of_npz(place, whole)
            return
        if beginning == NPY:
            head = npy_head(file, place.shown)
        elif beginning[:2] == b"\0\0":
            head = idx_head(file, place.shown)
        else:
            raise DataError(
                f"{place.shown} is no file of arrays (it begins with {beginning!r}): npy, npz or IDX was expected"
            )
        yield {name: _Array(file, head, place.shown)}


def _of_npz(place: Place, whole: bool) -> Iterator[dict[str, _Array]]:
    """All arrays of an npz file, each read by itself."""
    with ExitStack() as stack:
        archive = zipfile.ZipFile(stack.enter_context(place.open()))
        if whole and (wrong := archive.testzip()) is not None:  # a checksum stands behind the rows that it is of
            raise DataError(f"{place.shown}: {wrong} does not have the checksum that it should")
        members = archive.namelist()
        if not members or not all(member.endswith(".npy") for member in members):
            held = ", ".join(members[:4]) or "nothing"
            raise DataError(
                f"{place.shown} is a ZIP archive that holds {held}; arrays were expected, as numpy.savez writes"
            )
        arrays = {}
        for member in members:
            raw = stack.enter_context(place.open())  # a position of its own
            file: Any = stack.enter_context(stack.enter_context(zipfile.ZipFile(raw)).open(member))
            name = member.removesuffix(".npy")
            where = f"the array {name!r} in {place.shown}"
            arrays[name] = _Array(file, npy_head(file, where), where)
        yield arrays


def array_reader(
    places: Sequence[Place],
    name: str = "x",
    beside: Mapping[str, Sequence[Place]] | None = None,
    on_error: str = "stop",
) -> ArrayReader:
    """A reader of these files; `beside` names more columns, each with as many files, in the same order."""
    pairs = []
    for column, others in (beside or {}).items():
        if len(others) != len(places):
            raise DataError(f"{len(others)} files for {column!r}, but {len(places)} for {name!r}: one each is needed")
        pairs.append((column, tuple((place.key, other) for place, other in zip(places, others, strict=True))))
    return ArrayReader(name, tuple(pairs), on_error)
