"""Stores at other hosts: fetched once, in whole shards, from holders that have all or some; batches are the same."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from cordee.core.errors import DataError, StorageError, UsageError
from cordee.feed.counted import HERE
from cordee.feed.exchange import messages as said
from cordee.feed.exchange.access import Access
from cordee.feed.exchange.fetch import Fetched, fetch
from cordee.feed.exchange.holder import Holder
from cordee.feed.exchange.holders import FromHolders, Turns
from cordee.feed.exchange.listing import MANIFEST, Entry, check_entries
from cordee.feed.exchange.remote import Remote, ask
from cordee.feed.exchange.stored import store
from cordee.feed.store.cached import cached_store, entries_of
from cordee.feed.store.opened import open_store
from cordee.feed.store.recipe import Recipe
from exchanging import ACCESS, ANYWHERE, files_below
from harness import until
from stores import KINDS, Counter, built, places_of

FIXED = {name: kind for name, kind in KINDS.items() if not kind.ragged}


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A store of several shards."""
    recipe = Recipe(Counter(5, kinds=FIXED), places_of(tmp_path / "in", [40, 30, 50], 2**20), shard_bytes=500)
    built(recipe, tmp_path / "s/made")
    assert len(list((tmp_path / "s/made").iterdir())) > 5
    return tmp_path / "s/made"


def size(folder: Path) -> int:
    return sum(len(one) for name, one in files_below(folder).items() if not name.startswith(".lock"))


def test_it_is_fetched_once_and_gives_the_same_batches(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORDEE_CACHE", str(tmp_path / "cache"))
    token = tmp_path / "token"
    token.write_text(ACCESS.token)
    token.chmod(0o600)
    with contextlib.closing(Holder(made.parent, ANYWHERE, ACCESS)) as holder:
        url = f"cordee://{holder.place}/made"
        before = HERE.to_dict()
        far = store(url, token_file=token).train
        assert HERE.by_holder[holder.place] == HERE.fetched_bytes - before["fetched_bytes"] > 0
        near = open_store(made).sets["train"]
        assert far.fingerprint == near.fingerprint and len(far) == len(near) == 120
        ids = np.array([119, 3, 3, 77])
        for name, column in near.gather(ids).items():
            assert torch.equal(far.gather(ids)[name], column)
        head = len((made / MANIFEST).read_bytes())
        until(lambda: holder.served.size == size(made))
        assert fetch(url, access=ACCESS).received == 0
        assert fetch(f"cordee://{holder.place}/", access=ACCESS).folder.parent == tmp_path / "cache"
        until(lambda: holder.served.size == size(made) + 2 * head)


def test_what_was_fetched_is_used_when_its_holders_are_gone(made: Path, tmp_path: Path) -> None:
    told: list[str] = []
    with contextlib.closing(Holder(made.parent, ANYWHERE, ACCESS)) as holder:
        url = f"cordee://{holder.place}/made"
        got = fetch(url, access=ACCESS, folder=tmp_path / "c")
    again = fetch(url, access=ACCESS, folder=tmp_path / "c", tell=told.append)
    assert again.folder == got.folder and again.had == size(made) and "was fetched from there before" in told[0]
    shutil.rmtree(next(got.folder.glob("train-*")))
    for other in (url, f"{url}-2"):
        with pytest.raises(DataError, match="no holder of"):
            fetch(other, access=ACCESS, folder=tmp_path / "c")


def test_a_fetched_store_that_was_damaged_is_fetched_again(made: Path, tmp_path: Path) -> None:
    with contextlib.closing(Holder(made.parent, ANYWHERE, ACCESS)) as holder:
        url = f"cordee://{holder.place}/made"
        got = fetch(url, access=ACCESS, folder=tmp_path / "c")
        for damage in (Path.unlink, lambda path: os.truncate(path, 200)):
            damage(next(one for one in got.folder.rglob("x.npy") if one.stat().st_size > 200))
            assert fetch(url, access=ACCESS, folder=tmp_path / "c").folder == got.folder
            open_store(got.folder).verify()


def test_a_fetched_store_stays_within_the_budget_of_the_cache(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("CORDEE_CACHE", str(cache))
    recipe = Recipe(Counter(5, kinds=FIXED), places_of(tmp_path / "old", [200]), shard_bytes=500)
    old = cached_store(recipe).path
    whole = size(made)
    monkeypatch.setenv("CORDEE_CACHE_BYTES", str(whole + size(old) // 2))
    with contextlib.closing(Holder(made.parent, ANYWHERE, ACCESS)) as holder:
        url = f"cordee://{holder.place}/made"
        got = fetch(url, access=ACCESS)
        assert not old.exists() and got.folder.parent == cache
        shutil.rmtree(got.folder)
        monkeypatch.setenv("CORDEE_CACHE_BYTES", str(whole // 2))
        with pytest.raises(StorageError, match=r"CORDEE_CACHE_BYTES, or fetch shards when"):
            fetch(url, access=ACCESS)
        assert sum(one.nbytes for one in entries_of(cache)) == 0


def test_a_long_list_of_files_is_checked_once(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def check(entries: list[Entry]) -> None:
        looked.append(len(entries))
        check_entries(entries)

    monkeypatch.setattr("cordee.feed.exchange.remote.check_entries", check)
    sent = [said.Entries([Entry(f"{part}-{at}", 1, "crc32:00000000") for at in range(100)]) for part in range(9)]

    class Listing:
        def __init__(self, *more: object) -> None:
            self.left = [*sent, *more]

        def send(self, message: object) -> None:
            pass

        def receive(self, decode: object) -> object:
            return self.left.pop(0)

    end = said.Entries([Entry(MANIFEST, 1, "crc32:00000000")])
    assert len(ask(Listing(end, said.Finished()), "made")) == 901 and looked == [901]  # type: ignore[arg-type]
    monkeypatch.setattr("cordee.feed.exchange.remote.MOST_FILES", 500)
    endless = Listing(*sent, *sent)
    with pytest.raises(ValueError, match="it lists more than 500 files"):
        ask(endless, "made")  # type: ignore[arg-type]
    assert len(endless.left) > 9


def test_processes_of_a_host_fetch_it_once(made: Path, tmp_path: Path) -> None:
    found: list[Fetched] = []
    with contextlib.closing(Holder(made, ANYWHERE, ACCESS)) as holder:
        url = f"cordee://{holder.place}/made"
        threads = [
            threading.Thread(target=lambda: found.append(fetch(url, access=ACCESS, folder=tmp_path / "c")))
            for _ in range(4)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join(60)
    assert sorted(one.received for one in found) == [0, 0, 0, size(made) - len((made / MANIFEST).read_bytes())]
    assert {name for name in files_below(found[0].folder) if name != ".lock"} == {
        name for name in files_below(made) if name != ".lock"
    }


def scattered(made: Path, tmp_path: Path) -> list[Path]:
    """Two folders with every second shard each, of which both have the first one."""
    folders = [tmp_path / name / "made" for name in "ab"]
    shards = sorted(one.name for one in made.iterdir() if one.is_dir())
    for number, folder in enumerate(folders):
        shutil.copytree(made, folder)
        for place, shard in enumerate(shards[1:]):
            if place % 2 != number:
                shutil.rmtree(folder / shard)
    return folders


def test_holders_with_some_of_the_shards_each(made: Path, tmp_path: Path) -> None:
    one, two = scattered(made, tmp_path)
    with (
        contextlib.closing(Holder(one.parent, ANYWHERE, ACCESS)) as first,
        contextlib.closing(Holder(two.parent, ANYWHERE, ACCESS)) as second,
    ):
        got = fetch(f"cordee://{first.place},{second.place}/made", access=ACCESS, folder=tmp_path / "c")
        assert all(count > 0 for _, count in got.by_holder)
        assert sum(count for _, count in got.by_holder) == got.received
        open_store(got.folder).verify()
        with pytest.raises(DataError, match=r"shards .* are at none of the holders"):
            fetch(f"cordee://{first.place}/made", access=ACCESS, folder=tmp_path / "d")


def test_a_holder_that_dies(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its first file; what came of it stays, and the other one is asked for the rest."""
    given = Holder._give

    def give(self: Holder, link: object, folder: Path, get: said.Get, entry: object) -> None:
        if self.place == first.place and self.served.files >= 2:
            raise ConnectionError("killed")
        given(self, link, folder, get, entry)  # type: ignore[arg-type]

    monkeypatch.setattr(Holder, "_give", give)
    with (
        contextlib.closing(Holder(made.parent, ANYWHERE, ACCESS)) as first,
        contextlib.closing(Holder(made.parent, ANYWHERE, ACCESS)) as second,
    ):
        got = fetch(f"cordee://{first.place},{second.place}/made", access=ACCESS, folder=tmp_path / "c")
        open_store(got.folder).verify()
        assert dict(got.by_holder)[second.place] > dict(got.by_holder)[first.place]
        with pytest.raises(DataError, match=r"killed|closed"):
            fetch(f"cordee://{first.place}/made", access=ACCESS, folder=tmp_path / "d")
        again = fetch(f"cordee://{second.place}/made", access=ACCESS, folder=tmp_path / "d")
        open_store(again.folder).verify()


def test_what_is_not_there(made: Path, tmp_path: Path) -> None:
    for url in ("cordee://x", "cordee://", "cordee:///a", "http://a:1/b", "cordee://a:1/b/c"):
        with pytest.raises(UsageError, match="expected"):
            Remote.parse(url)
    with pytest.raises(DataError, match="holds no store"):
        Holder(tmp_path / "in", ANYWHERE, ACCESS)
    with contextlib.closing(Holder(made.parent, ANYWHERE, ACCESS)) as holder:
        for name in ("other", "..", "s"):
            with pytest.raises(DataError, match="there are: made"):
                fetch(f"cordee://{holder.place}/{name}", access=ACCESS, folder=tmp_path / "c")
        shutil.copytree(made, tmp_path / "t/made")
        manifest = tmp_path / "t/made" / MANIFEST
        manifest.write_bytes(manifest.read_bytes().replace(b'"skipped":0', b'"skipped":1'))
        with (
            contextlib.closing(Holder(tmp_path / "t", ANYWHERE, ACCESS)) as other,
            pytest.raises(DataError, match="different stores"),
        ):
            fetch(f"cordee://{holder.place},{other.place}/made", access=ACCESS, folder=tmp_path / "c")
    with pytest.raises(DataError, match="no holder of made answers"):
        fetch(f"cordee://{holder.place}/made", access=ACCESS, folder=tmp_path / "c")


def test_a_manifest_that_names_files_elsewhere(made: Path, tmp_path: Path) -> None:
    """Neither does a holder give such files, nor does one that fetches write them."""
    (tmp_path / "s/secret").mkdir()
    (tmp_path / "s/secret/x.npy").write_bytes(b"12345678")
    manifest = made / MANIFEST
    shard = sorted(one.name for one in made.iterdir() if one.is_dir())[0]
    manifest.write_bytes(manifest.read_bytes().replace(f'"{shard}"'.encode(), b'"../secret"'))
    with (
        contextlib.closing(Holder(made.parent, ANYWHERE, ACCESS)) as holder,
        pytest.raises(DataError, match=r"no store: it names .*secret"),
    ):
        fetch(f"cordee://{holder.place}/made", access=ACCESS, folder=tmp_path / "c")


def test_a_file_that_is_damaged_at_one_holder(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "t/made")
    victim = next(path for path in (tmp_path / "t/made").rglob("*.npy") if path.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    with contextlib.closing(Holder(tmp_path / "t", ANYWHERE, ACCESS)) as bad:
        with pytest.raises(DataError, match="checksum"):
            fetch(f"cordee://{bad.place}/made", access=ACCESS, folder=tmp_path / "c")
        with contextlib.closing(Holder(made.parent, ANYWHERE, ACCESS)) as good:
            got = fetch(f"cordee://{bad.place},{good.place}/made", access=ACCESS, folder=tmp_path / "c")
            open_store(got.folder).verify()


def test_garbage_to_a_holder(made: Path) -> None:
    with contextlib.closing(Holder(made.parent, ANYWHERE, ACCESS)) as holder:
        host, port = holder.place.split(":")
        for raw in (b"\0" * 10, b"\xff" * 100, b"GET / HTTP/1.1\r\n\r\n"):
            with socket.create_connection((host, int(port))) as sock:
                sock.sendall(raw)
        with contextlib.closing(ACCESS.dial(holder.place)) as link, contextlib.suppress(OSError):
            link.send(said.Get(0, 0))  # before anything was asked for
            link.receive(said.decode)
        with contextlib.closing(ACCESS.dial(holder.place)) as link:
            entries = ask(link, "made")
            link.send(said.Get(len(entries) - 1, 1 << 40))
            link.send(said.Ask("made"))
            assert isinstance(link.receive(said.decode), said.Entries)
        until(lambda: holder.served.stores >= 2)


def test_shards_come_from_all_holders_by_turns_and_a_lost_one_is_left_alone(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hold everything: both carry about half. One is lost: it is dialled once, until it is tried again later."""
    dialled: list[str] = []
    dial = Access.dial
    monkeypatch.setattr(Access, "dial", lambda self, place: dialled.append(place) or dial(self, place))
    with contextlib.closing(Holder(made.parent, ANYWHERE, ACCESS)) as first:
        with contextlib.closing(Holder(made.parent, ANYWHERE, ACCESS)) as second:
            places = first.place, second.place
            bring, later = (FromHolders(Remote.parse(f"cordee://{','.join(places)}/made"), ACCESS) for _ in range(2))
            entries = [one for one in later.offers[first.place] if one.path != MANIFEST]
            for entry in entries:
                assert bring(entry.path, 0, -1) == (made / entry.path).read_bytes()
            given, whole = bring.counters.by_holder, sum(one.size for one in entries)
            assert given.keys() == set(places) and sum(given.values()) == whole
            assert min(given.values()) >= whole / 2 - max(one.size for one in entries)
        dialled.clear()
        for tries in (1, 2):
            for entry in entries:
                assert later(entry.path, 0, -1) == (made / entry.path).read_bytes()
            assert (dialled.count(first.place), dialled.count(second.place)) == (1, tries)
            later._turns._lost.clear()  # a while has passed
    turns = Turns()
    for holder in places:
        with pytest.raises(OSError), turns.asking(holder, 1):
            raise OSError
    assert turns.next_of(places) in places, "a lost one is the last resort"
    with turns.asking(places[0], 1):
        pass
    assert turns.next_of(places) == places[0], "it is there again"
    with turns.asking(places[0], 5):
        turns._lost.clear()
        assert turns.next_of(places) == places[1], "bytes are on their way from the other one"
