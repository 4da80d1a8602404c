"""A store as data for a job: a folder of this host, or one that others hold."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from cordee.core.errors import DataError
from cordee.core.text import plain
from cordee.feed.data import Data
from cordee.feed.exchange.access import Access
from cordee.feed.exchange.fetch import fetch
from cordee.feed.exchange.remote import SCHEME, Remote
from cordee.feed.store.opened import open_store

_QUIET_S = 2.0


def store(place: str | Path, *, token_file: str | Path | None = None) -> Data:
    """The sets of a store that `cordee data build` has made: a folder, or `cordee://HOST:PORT/NAME`.

    Of the latter, which `cordee data serve` gives out at that host, what is lacking is fetched to the cache of this
    host, once for all of its processes. Several hosts may hold it, or parts of it each:
    `cordee://HOST:PORT,HOST:PORT/NAME`.
    """
    if not str(place).startswith(SCHEME):
        return _data_of(Path(place))
    access = Access.of(token_file, Remote.parse(str(place)).holders)
    began = time.monotonic()

    def tell(text: str) -> None:
        if time.monotonic() - began > _QUIET_S:
            print(plain(f"cordee: {place}: {text}"), file=sys.stderr, flush=True)  # noqa: T201

    return _data_of(fetch(str(place), access=access, tell=tell).folder)


def _data_of(folder: Path) -> Data:
    sets = open_store(folder).sets
    if "train" not in sets:
        raise DataError(f"the store {folder} has no set for training: it has {', '.join(sets) or 'no rows'}")
    return Data(sets["train"], sets.get("validation"), sets.get("test"))
