"""Features of `tf.train.Example` as columns: which kind each has, and its values, one row per message."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cordee.core.errors import DataError
from cordee.feed.columns import TEXT, Column, Kind, Ragged, Schema
from cordee.feed.permute import Ids
from cordee.feed.places import Place
from cordee.feed.sources.example import BYTES, FLOATS, LISTS, Lists, Parsed, entries_named, lists_of, names_in
from cordee.feed.sources.kinds import TEXTS
from cordee.feed.sources.protobuf import Bytes

Flags = NDArray[np.bool_]
_CONTROL = np.setdiff1d(np.arange(32), [9, 10, 13])
"""Bytes that no text has."""


def infer(buffer: Bytes, parsed: Parsed, count: int, place: Place) -> Schema:
    """The kinds of all features of these messages: lists of one length become arrays, others stay ragged."""
    names = names_in(buffer, parsed)
    if not names:
        raise DataError(f"{place.shown}: its first {count} records have no features, so there is nothing to read")
    return {name: _kind_of(buffer, parsed, name, count, place) for name in names}


def column_of(buffer: Bytes, parsed: Parsed, name: str, kind: Kind, count: int) -> tuple[Column, dict[int, str]]:
    """A feature of `count` messages, and what is wrong with which of them; these have zeros, or nothing."""
    entries = entries_named(buffer, parsed, name, count)
    kinds = np.where(entries >= 0, parsed.kinds[entries], 0) if len(parsed.kinds) else np.zeros(count, np.int64)
    held = kinds[kinds > 0]
    usual = int(held[0]) if len(held) else FLOATS
    rows = np.flatnonzero(kinds == usual)
    bad = {
        row: f"feature {name!r} holds {LISTS[int(kinds[row])]}, in other records {LISTS[usual]}"
        for row in np.flatnonzero((kinds > 0) & (kinds != usual)).tolist()
    }
    lists = lists_of(buffer, parsed.values.of(entries[rows]), usual)
    for place in np.flatnonzero(~lists.good).tolist():
        bad[int(rows[place])] = f"feature {name!r} cannot be read"
    if usual == BYTES:
        for place in np.flatnonzero(lists.elements > 1).tolist():
            several = f"feature {name!r} holds a list of {int(lists.elements[place])} texts; one per record is read"
            bad[int(rows[place])] = f"{several}. Give the features that are needed without it: features={{...}}"
    if kind.dtype == TEXT:
        return _texts(lists, rows, count, name, usual, bad), bad
    values, offsets = _as_numbers(lists, usual, kind, name, rows, bad)
    if kind.ragged:
        return _ragged(values, offsets, rows, count), bad
    return _fixed(values, offsets, rows, count, kind, name, bad), bad


# ------------------------------------------------------------- kinds


def _kind_of(buffer: Bytes, parsed: Parsed, name: str, count: int, place: Place) -> Kind:
    entries = entries_named(buffer, parsed, name, count)
    present = entries[entries >= 0]
    kinds = parsed.kinds[present]
    filled = present[kinds > 0]
    kind = int(kinds.max(initial=0))
    if not kind or (kinds[kinds > 0] != kind).any():
        found = " and ".join(LISTS[one] for one in sorted(set(kinds.tolist())))
        raise DataError(
            f"{place.shown}: feature {name!r} holds {found} in the first {count} records, so its kind cannot be known; "
            f"give the features to read: features={{{name!r}: 'float32', ...}}"
        )
    lists = lists_of(buffer, parsed.values.of(filled), kind)
    lengths = np.diff(lists.offsets)
    same = len(filled) == count and (lengths == lengths[0]).all()
    if kind == BYTES:
        if _is_text(lists):
            return TEXTS
        return Kind("uint8", (int(lengths[0]),)) if same and lengths[0] else Kind("uint8", ragged=True)
    dtype = "float32" if kind == FLOATS else "int64"
    if not same or not lengths[0]:
        return Kind(dtype, ragged=True)
    return Kind(dtype, () if lengths[0] == 1 else (int(lengths[0]),))


def _is_text(lists: Lists) -> bool:
    """Whether all of these bytes are words: UTF-8, and nothing that is printed in another way."""
    values = np.asarray(lists.values, dtype=np.uint8)
    return _is_utf8(lists.offsets, values) and not np.bincount(values, minlength=32)[_CONTROL].any()


def _is_utf8(offsets: Ids, values: NDArray[Any]) -> bool:
    try:
        values.tobytes().decode()
    except UnicodeDecodeError:
        return False
    # Text from end to end: each piece is, if none begins inside a character.
    starts = offsets[:-1][np.diff(offsets) > 0]
    return bool(((values[starts] & 0xC0) != 0x80).all())


# ------------------------------------------------------------- columns


def _texts(lists: Lists, rows: Ids, count: int, name: str, usual: int, bad: dict[int, str]) -> Ragged:
    if usual != BYTES:
        bad |= dict.fromkeys(rows.tolist(), f"feature {name!r} holds {LISTS[usual]}, a text was expected")
        return Ragged(np.zeros(count + 1, np.int64), np.zeros(0, np.uint8), text=True)
    values, offsets = np.asarray(lists.values, dtype=np.uint8), lists.offsets
    if not _is_utf8(offsets, values):
        keep = np.ones(len(rows), np.bool_)
        for place, (start, stop) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
            try:
                values[start:stop].tobytes().decode()
            except UnicodeDecodeError as error:
                keep[place] = False
                bad[int(rows[place])] = (
                    f"feature {name!r} is no text in UTF-8 (byte {error.start + 1} of it); as bytes: "
                    f"features={{{name!r}: 'uint8 (any length)', ...}}"
                )
        values = values[np.repeat(keep, np.diff(offsets))]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.where(keep, np.diff(offsets), 0))])
    ragged = _ragged(values, offsets, rows, count)
    return Ragged(ragged.offsets, ragged.values, text=True)


def _as_numbers(
    lists: Lists, usual: int, kind: Kind, name: str, rows: Ids, bad: dict[int, str]
) -> tuple[NDArray[Any], Ids]:
    """Values of the column's type; bytes are numbers of it, as `tf.io.decode_raw` takes them."""
    wanted = np.dtype(kind.dtype)
    if usual != BYTES:
        cast = lists.values.astype(wanted, copy=False)
        if wanted.kind in "iub":
            changed = np.flatnonzero(cast != lists.values)
            for place in (np.searchsorted(lists.offsets, changed, side="right") - 1).tolist():
                bad[int(rows[place])] = f"feature {name!r} holds a number that does not fit {kind.dtype}"
        return cast, lists.offsets
    uneven = np.flatnonzero(np.diff(lists.offsets) % wanted.itemsize)
    if not len(uneven):
        return lists.values.view(wanted.newbyteorder("<")).astype(wanted, copy=False), lists.offsets // wanted.itemsize
    for place in uneven.tolist():
        size = int(lists.offsets[place + 1] - lists.offsets[place])
        bad[int(rows[place])] = f"feature {name!r} holds {size} bytes, which are no whole numbers of {kind.dtype}"
    lengths = np.diff(lists.offsets)
    even = lengths % wanted.itemsize == 0
    values = lists.values[np.repeat(even, lengths)].view(wanted.newbyteorder("<")).astype(wanted, copy=False)
    sizes = np.where(even, lengths // wanted.itemsize, 0)
    return values, np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def _ragged(values: NDArray[Any], offsets: Ids, rows: Ids, count: int) -> Ragged:
    """Lists of some rows; the others have empty ones."""
    lengths = np.zeros(count, np.int64)
    lengths[rows] = np.diff(offsets)
    return Ragged(np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), values)


def _fixed(
    values: NDArray[Any], offsets: Ids, rows: Ids, count: int, kind: Kind, name: str, bad: dict[int, str]
) -> NDArray[Any]:
    """Lists of one length as an array."""
    size, lengths = prod(kind.shape), np.diff(offsets)
    right = lengths == size
    for row, length in zip(rows[~right].tolist(), lengths[~right].tolist(), strict=True):
        bad.setdefault(
            row,
            f"feature {name!r} holds {length} values, {size} were expected ({kind}); where lengths differ: "
            f"features={{{name!r}: '{kind.dtype} (any length)', ...}}",
        )
    missing = np.setdiff1d(np.arange(count), rows) if len(rows) < count else rows[:0]
    for row in missing.tolist():
        bad.setdefault(
            row,
            f"it has no feature {name!r}; where records may lack it: "
            f"features={{{name!r}: '{kind.dtype} (any length)', ...}}",
        )
    if len(rows) == count and right.all():
        return values.reshape(count, *kind.shape)
    whole = np.zeros((count, size), values.dtype)
    whole[rows[right]] = values[np.repeat(right, lengths)].reshape(-1, size)
    return whole.reshape(count, *kind.shape)
