"""A store that lies elsewhere, as a source: rows are fetched in blocks, through the levels of a cache."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from cordee.core.errors import DataError
from cordee.feed.cache.levels import Block, Levels
from cordee.feed.cache.pool import Buffer
from cordee.feed.cache.reader import Reader
from cordee.feed.cache.settings import Cache
from cordee.feed.cache.table import BlockTable, Cut, number_type
from cordee.feed.coming import Coming
from cordee.feed.locality import Holders
from cordee.feed.order import Order
from cordee.feed.permute import Ids
from cordee.feed.source import Fields, Traits, check_ids, digest_of
from cordee.feed.store.check import check_manifest
from cordee.feed.store.layout import FORM, HEAD, MANIFEST, Manifest, Shard

TRIES, PAUSE_S = 3, 0.4
Bring = Callable[[str, int, int], bytes]
"""Gives bytes of a file below the store: its path, from which offset on, and how many; -1: all."""

Held = Callable[[Sequence[Shard]], Holders]
"""Which hosts hold each of these shards."""


class FarOrigin:
    """Blocks of a store, by asking a host that has it for parts of its files."""

    def __init__(self, bring: Bring, table: BlockTable, name: str) -> None:
        """`name` is what messages call the store."""
        self._bring, self._table, self._name = bring, table, name
        self.key, self.blocks = table.key, len(table)

    def nbytes(self, block: int) -> int:
        """The size of a block."""
        return self._table.nbytes(block)

    def fetch(self, block: int, into: Buffer) -> None:
        """All of its parts; whole files are compared with the store's checksums."""
        folder = self._table.run(block).shard.folder
        for part in self._table.parts(block):
            whole = self._table.whole
            start, count = (0, part.file.size) if whole else (part.start, part.nbytes)
            raw = self._tried(f"{folder}/{part.file.name}", start, count, part.file.crc if whole else None)
            into[part.at : part.at + part.nbytes] = np.frombuffer(raw, np.uint8)[HEAD if whole else 0 :]

    def _tried(self, path: str, start: int, count: int, crc: int | None) -> bytes:
        """Some bytes of a file; asked for again a few times where they do not come, or not as they should be."""
        for attempt in range(TRIES):
            if attempt:
                time.sleep(PAUSE_S * attempt)
            raw = self._bring(path, start, count)
            if len(raw) == count and (crc is None or zlib.crc32(raw) == crc):
                return raw
        problem = f"gave {len(raw)} bytes, not {count}" if len(raw) != count else "does not have the checksum it should"
        raise DataError(
            f"{self._name}/{path} {problem}, {TRIES} times: it was changed or damaged since the store was built; copy "
            "the store there again"
        )


class FarStore:
    """A store elsewhere: its manifest is read at once, its rows when they are needed."""

    def __init__(
        self, bring: Bring, name: str, cache: Cache, manifest: Manifest | None = None, held: Held | None = None
    ) -> None:
        """`name` is its URL, for messages; without a `manifest` it is fetched. `held`: where hosts hold parts of it."""
        self.bring, self.name, self.cache, self.held = bring, name, cache, held
        self.manifest = manifest or _manifest(bring(MANIFEST, 0, -1), name)
        self.table = BlockTable(self.manifest, cache.block)
        if not any(map(self.manifest.rows, self.manifest.sets)):
            raise DataError(f"{name} has no rows: there is nothing to train on")

    @cached_property
    def sets(self) -> dict[str, FarSource]:
        """By name, those that have rows."""
        return {one: FarSource(self, one) for one in self.manifest.sets if self.manifest.rows(one)}

    @cached_property
    def levels(self) -> Levels:
        """The levels of its cache, in this process."""
        return Levels(self.cache, FarOrigin(self.bring, self.table, self.name))

    def __reduce__(self) -> Any:
        """A process that is sent the store opens levels of its own."""
        return FarStore, (self.bring, self.name, self.cache, self.manifest, self.held)


class FarSource:
    """One set of a far store; a batch is a dict of tensors by column."""

    def __init__(self, store: FarStore, name: str) -> None:
        """The set of this name."""
        self.store, self.name = store, name
        self._cut: Cut = store.table.sets[name]
        self._rows = store.manifest.rows(name)
        self._readers: list[Reader] = []
        self._turn = threading.Lock()
        if strange := [column for column, kind in store.table.schema.items() if kind.ragged]:
            raise DataError(
                f"{store.name}: the entries of {strange[0]} are of any length, so that rows cannot be put into a "
                "batch: make its entries as long as each other (.pad), or leave it out (.drop), and build it again"
            )

    def __reduce__(self) -> Any:
        """As part of its store."""
        return _set_of, (self.store, self.name)

    def __len__(self) -> int:
        """How many rows the set has."""
        return self._rows

    @cached_property
    def traits(self) -> Traits:
        """Far: it wants to know beforehand what is read."""
        held, shards = self.store.held, self.store.manifest.sets[self.name]
        device, holders = self.store.cache.device_bytes, None if held is None else held(shards)
        return Traits(runs_user_code=False, far=self, device=device, holders=holders)

    @cached_property
    def nbytes(self) -> int:
        """Memory that all its rows take."""
        return sum(self.store.table.nbytes(self._cut.first + number) for number in range(len(self._cut.runs)))

    @property
    def fingerprint(self) -> str:
        """As of the same store on a local disk."""
        return digest_of([self.store.manifest.fingerprint.encode(), self.name.encode()])

    def expect(self, coming: Coming) -> Reader:
        """Take note of what one reader is going to ask for; close what is returned when it stops."""
        reader = Reader(self.store.levels, coming, self._cut.block_of)
        with self._turn:
            self._readers = [*(one for one in self._readers if not one.closed), reader]
        return reader

    def statistics(self) -> dict[str, Any]:
        """What came from which level so far, in this process, and what the levels hold now; over all sets."""
        own = getattr(self.store.bring, "counters", None)  # of holders, where they hold the store
        return {**self.store.levels.statistics(), **({} if own is None else {"by_holder": dict(own.by_holder)})}

    def advice(self, order: Order) -> str:
        """For an order that jumps through the whole set, where that is larger than what can be kept of it."""
        cache, whole = self.store.cache, self.nbytes
        kept = cache.memory_bytes + cache.disk_bytes
        if order.shuffle != "full" or whole <= kept:
            return ""
        return (
            f"the {self.name} set of {self.store.name} has {whole:,} bytes, of which the cache keeps {kept:,}; "
            "shuffle='full' reads blocks in any order, so most of them are fetched many times in each epoch: "
            f"shuffle='blocks' fetches each about once, or give the cache more: Cache(disk={whole})"
        )

    def buffers(self, count: int, *, pin: bool = False) -> Fields:
        """Memory for `count` rows of every column."""
        return {
            name: torch.empty((count, *kind.shape), dtype=_torch_type(number_type(kind)), pin_memory=pin)
            for name, kind in self.store.table.schema.items()
        }

    def gather(self, ids: Ids, out: Fields | None = None) -> Fields:
        """The rows `ids`, block after block, from the nearest level that has each."""
        check_ids(ids, len(self))
        fields = {name: one[: len(ids)] for name, one in (out or self.buffers(len(ids))).items()}
        targets = [one.numpy() for one in fields.values()]
        numbers = self._cut.block_of(ids)
        order = np.argsort(numbers, kind="stable")
        found, starts = np.unique(numbers[order], return_index=True)
        places = dict(zip(found.tolist(), np.split(order, starts[1:]), strict=True)) if len(ids) else {}
        levels = self.store.levels
        # What no reader brings was not announced, or its reader was closed.
        left = (levels.read(number) for number in dict.fromkeys(numbers.tolist()) if number in places)
        for block in chain(self._announced(ids), left):
            at = places.pop(block.number, None)
            if at is not None:
                self._copy(block, ids[at] - self._cut.starts[block.number - self._cut.first], at, targets)
            del block  # its memory is wanted for the next
        return fields

    def _announced(self, ids: Ids) -> Iterator[Block]:
        """Blocks as the reader brings them that said that it would ask for these samples now, if there is one."""
        with self._turn:
            readers = [one for one in self._readers if not one.closed]
        for reader in reversed(readers):
            if count := reader.gathers(ids):
                return reader.blocks(count)
        return iter(())

    def _copy(self, block: Block, rows: Ids, at: Ids, targets: list[NDArray[Any]]) -> None:
        """Rows of a block to their places in a batch."""
        table, count = self.store.table, self.store.table.run(block.number).rows
        raw = block.wait(self.store.cache.deadline_s)
        for (dtype, shape), part, target in zip(table.forms, table.parts(block.number), targets, strict=True):
            target[at] = raw[part.at : part.at + part.nbytes].view(dtype).reshape(count, *shape)[rows]


def _manifest(raw: bytes, name: str) -> Manifest:
    try:
        manifest = msgspec.json.decode(raw, type=Manifest)
    except msgspec.MsgspecError as error:
        raise DataError(
            f"{name}/{MANIFEST} is no manifest of a store ({error}): copy the store there again, or build it anew"
        ) from error
    if manifest.form != FORM:
        raise DataError(
            f"{name} was written in form {manifest.form}, this version of cordee reads form {FORM}: build it again"
        )
    try:
        check_manifest(manifest)
    except DataError as error:
        raise DataError(f"{name} is no store: {error.message}; copy it there again, or build it anew") from None
    return manifest


def _set_of(store: FarStore, name: str) -> FarSource:
    return store.sets[name]


def _torch_type(dtype: np.dtype[np.generic]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
