"""A store that is open for reading: its sets as sources of samples, whose rows lie in files mapped into memory."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cordee.core.errors import DataError
from cordee.core.locks import lock
from cordee.feed.arrays import ArraySource
from cordee.feed.columns import TEXT, Columns, Ragged
from cordee.feed.permute import Ids
from cordee.feed.source import Fields, Traits, check_ids, digest_of
from cordee.feed.store.check import check_files, check_manifest, dtype_of, row_bytes
from cordee.feed.store.layout import BUILDING, FORM, HEAD, LOCK, MANIFEST, ColumnFile, Manifest, file_names
from cordee.feed.store.mapping import Places, mapped

_PIECE = 1 << 20


class Folder:
    """The folder of a store, kept from being removed as long as one of its sets is in use."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        """Share its lock."""
        self.path, self.manifest = path, manifest
        self._held = _shared(path)

    def __del__(self) -> None:
        if (held := self.__dict__.get("_held")) is not None:
            os.close(held)

    def files(self) -> Iterator[tuple[Path, ColumnFile]]:
        """Every column's file of every shard."""
        for shards in self.manifest.sets.values():
            for shard in shards:
                for file in shard.files:
                    yield self.path / shard.folder / file.name, file


class Store:
    """A folder that was built: what is known of it, and its sets."""

    def __init__(self, folder: Folder) -> None:
        """Made by `open_store`, which looks whether its files are there."""
        self._folder = folder
        self.path, self.manifest = folder.path, folder.manifest
        self.sets = {name: StoreSource(folder, name) for name in self.manifest.sets}
        """By name: `train`, `validation`, `test`, as far as they have rows."""

    def __reduce__(self) -> Any:
        """A worker that is sent it opens it anew."""
        return open_store, (self.path,)

    def verify(self, tell: Callable[[int], None] = lambda nbytes: None) -> None:
        """Read every file, and compare it with its checksum; `DataError` names the first that differs."""
        for path, file in self._folder.files():
            if crc_of(path) != file.crc:
                raise DataError(f"{path} is damaged: its bytes are not those that were written; build the store again")
            tell(file.size)


class StoreSource:
    """One set of a store: batches are dicts with a tensor for each column, gathered by one read of mapped memory."""

    def __init__(self, folder: Folder, name: str) -> None:
        """Map nothing before it is needed."""
        self.folder, self.name = folder, name
        self.schema = folder.manifest.schema
        self._shards = folder.manifest.sets[name]
        self._count = folder.manifest.rows(name)
        self._fixed = {column: kind for column, kind in self.schema.items() if not kind.ragged}
        self._places = Places([shard.rows for shard in self._shards], [row_bytes(one) for one in self._fixed.values()])
        self._open: dict[tuple[int, str], Ragged] = {}

    def __len__(self) -> int:
        """How many rows the set has."""
        return self._count

    def __reduce__(self) -> Any:
        """A worker that is sent it opens it anew."""
        return _set_of, (self.folder.path, self.name)

    @property
    def fingerprint(self) -> str:
        """Of the bytes of all rows of the store, known since it was built."""
        return digest_of([self.folder.manifest.fingerprint.encode(), self.name.encode()])

    @cached_property
    def traits(self) -> Traits:
        """Rows of arrays that lie in mapped files."""
        if len(self._fixed) < len(self.schema):
            return Traits(runs_user_code=False)
        rows = self._places.of(np.arange(self._count, dtype=np.int64)) if self._places.holes else None
        return Traits(runs_user_code=False, table=self._table, rows=rows)

    def buffers(self, count: int, *, pin: bool = False) -> Fields:
        """Memory for `count` rows of every column."""
        return self._table.buffers(count, pin=pin)

    def gather(self, ids: Ids, out: Fields | None = None) -> Fields:
        """The rows `ids` of every column as tensors, in memory that is given if it can be used again."""
        table = self._table
        check_ids(ids, self._count)
        return table.gather(self._places.of(ids), out)

    def rows(self, ids: Ids) -> Columns:
        """The rows `ids` of every column, texts and lists of any length too."""
        check_ids(ids, self._count)
        places, shards = self._places.of(ids), self._places.shards(ids)
        return {
            name: self._ragged(name, ids, shards) if kind.ragged else self._arrays[name].take(places, axis=0)
            for name, kind in self.schema.items()
        }

    @cached_property
    def _arrays(self) -> dict[str, NDArray[Any]]:
        """The columns of fixed shape, by place."""
        counts = [shard.rows for shard in self._shards]
        folders = [self.folder.path / shard.folder for shard in self._shards]
        return {
            name: mapped(kind, [folder / file_names(name, kind)[0] for folder in folders], counts, self._places)
            for name, kind in self._fixed.items()
        }

    @cached_property
    def _table(self) -> ArraySource:
        self._check_fixed()
        return ArraySource(self._arrays)

    def _check_fixed(self) -> None:
        ragged = [name for name, kind in self.schema.items() if kind.ragged]
        if not ragged:
            return
        texts = [name for name in ragged if self.schema[name].dtype == TEXT]
        advice = (
            f"leave {texts[0]} out, or make numbers of it (.select, .drop, .one_hot, .hash, .tokenize)"
            if texts
            else f"make its entries as long as each other: .pad({ragged[0]!r}, length)"
        )
        held = f"{texts[0]} holds text" if texts else f"the entries of {ragged[0]} are of any length"
        raise DataError(f"rows of {self.folder.path} cannot be put into a batch, as {held}: {advice}")

    def _ragged(self, name: str, ids: Ids, shards: Ids) -> Ragged:
        """Gathered shard by shard, then put into the order of `ids`."""
        order = np.argsort(shards, kind="stable")
        parts, lengths = [], []
        for shard in np.unique(shards).tolist():
            column = self._column(shard, name)
            taken = column.take(ids[order][shards[order] == shard] - self._places.starts[shard])
            parts.append(taken.values)
            lengths.append(np.diff(taken.offsets))
        text = self.schema[name].dtype == TEXT
        if not parts:
            return Ragged(np.zeros(1, np.int64), np.zeros(0, np.uint8 if text else self.schema[name].dtype), text=text)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))])
        return Ragged(offsets, np.concatenate(parts), text=text).take(np.argsort(order, kind="stable"))

    def _column(self, shard: int, name: str) -> Ragged:
        found = self._open.get((shard, name))
        if found is None:
            one, kind = self._shards[shard], self.schema[name]
            paths = [self.folder.path / one.folder / file for file in file_names(name, kind)]
            offsets, values = _flat(paths[0], np.dtype(np.int64)), _flat(paths[1], dtype_of(name, kind))
            if offsets[0] != 0 or offsets[-1] != len(values) or (offsets[1:] < offsets[:-1]).any():
                raise DataError(f"{paths[0]} does not say where entries begin: copy or build the store again")
            found = self._open[shard, name] = Ragged(offsets, values, text=kind.dtype == TEXT)
        return found


def open_store(path: str | Path) -> Store:
    """The store in a folder; `DataError` says what is missing, or that it was not built to its end."""
    folder = Path(path).expanduser().absolute()
    if not (folder / MANIFEST).is_file():
        raise DataError(_no_store(folder))
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DataError(f"{folder / MANIFEST} is no manifest of a store ({error}): build the store again") from error
    if manifest.form != FORM:
        raise DataError(
            f"{folder} was written in form {manifest.form}, this version of cordee reads form {FORM}: build it again"
        )
    try:
        check_manifest(manifest)
    except DataError as error:
        raise DataError(f"{folder} is no store: {error.message}; build it again") from None
    opened = Folder(folder, manifest)  # from here on no process removes its files
    check_files(folder, manifest)
    return Store(opened)


def is_store(path: Path) -> bool:
    """Whether a folder is a store."""
    return (path / MANIFEST).is_file()


def crc_of(path: Path) -> int:
    """The CRC-32 of a file."""
    crc, buffer = 0, memoryview(bytearray(_PIECE))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            crc = zlib.crc32(buffer[:count], crc)
    return crc


def _no_store(folder: Path) -> str:
    if not folder.exists():
        return f"{folder} is not there: the folder of a store was expected (cordee data build SOURCE {folder.name})"
    if (folder / BUILDING).is_dir():
        return f"{folder} was not built to its end: give the same `cordee data build` again, which goes on with it"
    return f"{folder} is no store (it has no {MANIFEST}): make one with `cordee data build SOURCE OUT`"


def _flat(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The numbers of a file, mapped."""
    if path.stat().st_size <= HEAD:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=HEAD)


def _shared(path: Path) -> int | None:
    """A descriptor whose lock says that the store is in use; None where there is no lock to be had."""
    try:
        handle = os.open(path / LOCK, os.O_RDONLY)
    except OSError:
        return None
    lock(handle, shared=True)
    return handle


def _set_of(path: Path, name: str) -> StoreSource:
    return open_store(path).sets[name]
