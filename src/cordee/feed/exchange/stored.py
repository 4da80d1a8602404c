"""A store as data for a job: a folder of this host, a URL, or one that other hosts hold."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from cordee.core.text import plain
from cordee.feed.cache.below import Below
from cordee.feed.cache.far import FarStore
from cordee.feed.cache.settings import WHOLE, Cache
from cordee.feed.counted import HERE
from cordee.feed.data import Data, data_of_store
from cordee.feed.exchange.access import Access
from cordee.feed.exchange.fetch import fetch
from cordee.feed.exchange.holders import FromHolders
from cordee.feed.exchange.remote import SCHEME, Remote
from cordee.feed.filesystem.find import absolute
from cordee.feed.filesystem.seam import without_query
from cordee.feed.store.opened import Store, open_store

_QUIET_S = 2.0


def store(place: str | os.PathLike[str], *, cache: Cache | None = None, token_file: str | Path | None = None) -> Data:
    """The sets of a store that `cordee data build` has made: a folder, a URL, or what other hosts hold.

    A folder is mapped into memory. Of `s3://`, `hdfs://` and `http(s)://`, rows are fetched when they are needed,
    through the levels of `cache` (by default 1 GB of memory per worker, 10 GB of disk per host); so are those of a
    slow folder, if a cache is given.

    `cordee://HOST:PORT/NAME` is what `cordee data serve` gives out at that host. What is lacking is fetched to the disk
    of this host, once for all of its processes; with `cache`, shards come one by one when they are needed. Several
    hosts may hold it, or parts of it each: `cordee://HOST:PORT,HOST:PORT/NAME`.
    """
    named = os.fspath(place)
    if cache is None and named.startswith(SCHEME):
        return _fetched(named, token_file)
    if cache is None and (folder := absolute(named)).startswith("/"):
        return _data_of(open_store(folder), folder)
    far = far_store(named, cache or Cache(), token_file)
    return _data_of(far, far.name)


def far_store(named: str, cache: Cache, token_file: str | Path | None = None) -> FarStore:
    """A store elsewhere, of which no more than the manifest is fetched at once."""
    if not named.startswith(SCHEME):
        named = absolute(named)
        return FarStore(Below(named), without_query(named), cache)
    remote = Remote.parse(named)
    bring = FromHolders(remote, Access.of(token_file, remote.holders))
    return FarStore(bring, named, replace(cache, block=WHOLE), held=bring.held)


def _fetched(named: str, token_file: str | Path | None) -> Data:
    access = Access.of(token_file, Remote.parse(named).holders)
    began = time.monotonic()

    def tell(text: str) -> None:
        if time.monotonic() - began > _QUIET_S:
            print(plain(f"cordee: {named}: {text}"), file=sys.stderr, flush=True)  # noqa: T201

    fetched = fetch(named, access=access, tell=tell)
    if fetched.received:
        given = {holder: nbytes for holder, nbytes in fetched.by_holder if nbytes}
        HERE.count(fetched_bytes=fetched.received, fetched_s=fetched.seconds, holders=given)
    return _data_of(open_store(fetched.folder), named)


def _data_of(store: Store | FarStore, named: str) -> Data:
    return data_of_store(store.manifest, store.sets, named)
