"""Stores that lie elsewhere: the same rows as on a local disk, fetched once where there is room for them."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import cordee
from blocks import Folder, write_store
from cordee.core.errors import DataError
from cordee.feed.arrays import ArraySource
from cordee.feed.cache.device import resident
from cordee.feed.cache.far import FarSource, FarStore
from cordee.feed.cache.settings import Cache
from cordee.feed.columns import Ragged
from cordee.feed.feeder import Feeder, Slot
from cordee.feed.locality import Holders
from cordee.feed.order import Order
from cordee.feed.share import Share, Shares
from cordee.feed.source import Subset, Traits
from cordee.feed.store.opened import open_store
from cordee.group.team import Team

ROWS = 500
ROW_BYTES = 4 * 6 + 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("far") / "store"
    draw = np.random.default_rng(0)
    columns = {"x": draw.random((ROWS, 2, 3), np.float32), "y": draw.integers(0, 9, ROWS)}
    write_store(path, columns, 70, train=400, validation=100)
    return path


class Ranges(BaseHTTPRequestHandler):
    """Files of a folder, by ranges where `ranges` says so."""

    folder: ClassVar[Path]
    ranges: ClassVar[bool] = True
    served: ClassVar[list[int]] = []
    breaks: ClassVar[int] = 0
    tag: ClassVar[str] = "first"

    def do_GET(self) -> None:
        path = self.folder / self.path.partition("?")[0].lstrip("/")
        if not path.is_file():
            return self.send_error(404)
        raw = path.read_bytes()
        start, stop = 0, len(raw)
        if self.ranges and (wanted := self.headers.get("Range")):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(stop, int(last) + 1)
        self.send_response(206 if self.ranges else 200)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(raw)}")
        self.send_header("Content-Length", str(stop - start))
        self.send_header("ETag", self.tag)
        self.end_headers()
        if type(self).breaks:
            type(self).breaks -= 1
            stop -= 1  # and the connection is closed
        self.wfile.write(raw[start:stop])
        self.served.append(stop - start)
        return None

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(folder: Path) -> Iterator[tuple[str, type[Ranges]]]:
    kind = type("Here", (Ranges,), {"folder": folder, "served": []})
    found = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{found.server_port}", kind
    found.shutdown()
    thread.join()
    found.server_close()


def far(path: Path, /, **cache: Any) -> tuple[FarStore, Folder]:
    bring = Folder(path)
    return FarStore(bring, "far", Cache(**{"disk": 0, "block": 10 * ROW_BYTES, **cache})), bring


def same(one: Any, other: Any) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def walk(source: Any, reference: Any, shares: Share, *, shuffle: str = "full", epochs: int = 2) -> None:
    """Batches of a training, compared with those of the store on the local disk."""
    order = Order(len(source), 33, seed=4, shuffle=shuffle, block=20, window=4)
    feeder = Feeder(source, order, Shares(((0, shares),)), Team())
    other = Feeder(reference, order, Shares(((0, shares),)), Team())
    for epoch in range(epochs):
        for step in range(order.steps):
            batch, expected = feeder.take(Slot(epoch, step)), other.take(Slot(epoch, step))
            assert np.array_equal(batch.ids, expected.ids) and same(batch.fields, expected.fields)
    feeder.close()
    other.close()


@pytest.mark.parametrize("block", ["shard", 10 * ROW_BYTES, 1, "1MB"])
@pytest.mark.parametrize("memory", [2 * 10 * ROW_BYTES, "1MB", 100])
def test_the_same_batches_as_from_the_local_disk(folder: Path, tmp_path: Path, block: Any, memory: Any) -> None:
    store, _ = far(folder, block=block, memory=memory, disk="50kB", folder=tmp_path)
    local = open_store(folder)
    for name in ("train", "validation"):
        assert len(store.sets[name]) == len(local.sets[name])
        assert store.sets[name].fingerprint == local.sets[name].fingerprint
        walk(store.sets[name], local.sets[name], Share(), epochs=1 if block == 1 else 2)


@pytest.mark.parametrize("shuffle", ["blocks", "none"])
def test_a_small_cache_is_enough_for_an_order_in_blocks(folder: Path, shuffle: str) -> None:
    store, bring = far(folder, memory=5000, ahead=0)
    walk(store.sets["train"], open_store(folder).sets["train"], Share(), shuffle=shuffle)
    assert store.levels.counters.fetched < 2 * 2 * len(store.table.sets["train"].runs)
    full, more = far(folder, memory=5000, ahead=0)
    walk(full.sets["train"], open_store(folder).sets["train"], Share())
    assert more.nbytes > 2 * bring.nbytes


def test_a_part_of_a_set_and_an_evaluation_in_the_middle(folder: Path) -> None:
    store, _ = far(folder, memory="8kB")
    train, local = store.sets["train"], open_store(folder).sets["train"]
    ids = np.random.default_rng(1).permutation(400)[:150]
    order = Order(150, 16, seed=2)
    feeder = Feeder(Subset(train, ids), order, Shares(), Team())
    for step in range(order.steps):
        batch = feeder.take(Slot(0, step))
        assert same(batch.fields, local.gather(ids[batch.ids]))
        if step == 4:
            walk(store.sets["validation"], open_store(folder).sets["validation"], Share(), shuffle="none", epochs=1)
            walk(train, local, Share(), shuffle="none", epochs=1)
            gc.collect()
    feeder.forget()  # as after a loss: the same step again, and then others
    for slot in (Slot(0, 3), Slot(0, 4), Slot(7, 2)):
        batch = feeder.take(slot)
        assert same(batch.fields, local.gather(ids[order.ids(*slot[:2])]))
    feeder.close()


def test_several_workers_of_a_host_fetch_a_block_once(folder: Path, tmp_path: Path) -> None:
    stores = [far(folder, memory=0, disk="1MB", folder=tmp_path, ahead=0) for _ in range(3)]
    expected = open_store(folder).sets["train"]
    failed: list[BaseException] = []

    def read(store: FarStore) -> None:
        try:
            for step in range(20):
                ids = Order(400, 20, seed=9).ids(0, step)
                assert same(store.sets["train"].gather(ids), expected.gather(ids))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read, args=(store,)) for store, _ in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    asked = [one for _, bring in stores for one in bring.asked if one[0] != "manifest.json"]
    assert len(asked) == len(set(asked)) == 2 * len(stores[0][0].table.sets["train"].runs)


def test_what_the_disk_holds_is_there_after_a_restart(folder: Path, tmp_path: Path) -> None:
    ids = np.arange(400)
    expected = open_store(folder).sets["train"].gather(ids)
    for fetched in (40, 0):
        store, _ = far(folder, block="200B", memory="1kB", disk="1MB", folder=tmp_path)
        assert same(store.sets["train"].gather(ids), expected)
        assert (store.levels.counters.fetched > 0) == (fetched > 0)
    store.levels._disk.path(3).write_bytes(b"nonsense")  # type: ignore[union-attr]
    assert same(store.sets["train"].gather(ids), expected)
    assert store.levels.statistics()["damaged"] == 1


def test_a_web_server(server: tuple[str, type[Ranges]], folder: Path, tmp_path: Path) -> None:
    url, kind = server
    data = cordee.data.store(f"{url}?token=secret", cache=Cache("4kB", "1MB", tmp_path, block=320))
    local = cordee.data.store(folder)
    assert isinstance(data.train, FarSource) and data.test is None
    kind.breaks = 2
    walk(data.train, local.train, Share())
    walk(data.validation, local.validation, Share(), shuffle="none")
    size = sum(one.stat().st_size for one in folder.rglob("*.npy"))
    assert sum(kind.served) < size + 2000 + 4096  # each row once, and the manifest
    kind.ranges = False
    again = cordee.data.store(url, cache=Cache("4kB", 0, block="shard"))
    assert same(again.train.gather(np.arange(0, 400, 7)), local.train.gather(np.arange(0, 400, 7)))


def test_a_store_that_is_replaced_during_a_run_is_refused(server: tuple[str, type[Ranges]], folder: Path) -> None:
    url, kind = server
    data = cordee.data.store(url, cache=Cache("1kB", 0, block=320))
    data.train.gather(np.arange(5))
    kind.tag = "second"
    for ids in (np.arange(60), np.arange(399, 300, -1)):  # of a file that was read, and of one that was not
        with pytest.raises(DataError, match=rf"{url}/.* was replaced while the store was read"):
            pickle.loads(pickle.dumps(data.train)).gather(ids)
    with pytest.raises(DataError, match="was replaced"):
        data.train.gather(np.arange(60))


def test_a_bucket(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    moto = pytest.importorskip("moto.server")
    found = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    found.start()
    host, port = found.get_host_and_port()
    environment = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_EC2_METADATA_DISABLED": "true"}
    environment |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    before = dict(os.environ)
    os.environ |= environment
    try:
        from pyarrow import fs

        files = fs.S3FileSystem(endpoint_override=f"{host}:{port}", scheme="http", allow_bucket_creation=True)
        files.create_dir("mine")
        for path in folder.rglob("*"):
            if path.is_file():
                with files.open_output_stream(f"mine/data/{path.relative_to(folder)}") as out:
                    out.write(path.read_bytes())
        data = cordee.data.store("s3://mine/data/", cache=Cache("100kB", "1MB", tmp_path, block="2kB"))
        walk(data.train, cordee.data.store(folder).train, Share(), epochs=1)
        shorter = cordee.data.store("s3://mine/data", cache=Cache("1kB", 0, block=320))
        shorter.train.gather(np.arange(1))
        time.sleep(1.1)  # the time of a change is told in whole seconds
        with files.open_output_stream("mine/data/manifest.json") as out:
            out.write(b"{}")
        with pytest.raises(DataError, match=r"data/manifest.json was replaced"):
            shorter.train.gather(np.arange(300, 310))
        with pytest.raises(DataError, match="is no manifest of a store"):
            cordee.data.store("s3://mine/data")  # not what was read before, nor cut to its length
        with pytest.raises(DataError, match="mine/none/manifest"):
            cordee.data.store("s3://mine/none")
    finally:
        os.environ.clear()
        os.environ |= before
        found.stop()


def test_a_file_that_was_changed_or_cut_short_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cordee.feed.cache.far.PAUSE_S", 0.01)

    class Wrong(Folder):
        def __call__(self, path: str, start: int, count: int) -> bytes:
            raw = super().__call__(path, start, count)
            return raw if "manifest" in path else raw[:-1] if self.short else bytes([raw[0] ^ 1]) + raw[1:]

    for short, block, message in ((True, 320, r"gave \d+ bytes, not"), (False, "shard", "does not have the checksum")):
        bring = Wrong(folder)
        bring.short = short  # type: ignore[attr-defined]
        store = FarStore(bring, "s3://mine/data", Cache(memory="1MB", disk=0, block=block))
        with pytest.raises(DataError, match=rf"s3://mine/data/train-0+/x.npy {message}.*, 3 times"):
            store.sets["train"].gather(np.arange(3))


def test_what_is_no_store(tmp_path: Path, server: tuple[str, type[Ranges]]) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match="is no manifest of a store"):
        cordee.data.store(tmp_path, cache=Cache(disk=0))
    with pytest.raises(DataError, match=r"nothing/manifest.* is not there"):
        cordee.data.store(f"{server[0]}/nothing")
    write_store(tmp_path / "ragged", {"words": Ragged.of(["a", "bc"])}, 2)
    with pytest.raises(DataError, match="the entries of words are of any length"):
        cordee.data.store(tmp_path / "ragged", cache=Cache(disk=0))


def test_a_worker_that_is_sent_a_store_opens_its_own_levels(folder: Path) -> None:
    store, _ = far(folder, memory="1MB")
    store.sets["train"].gather(np.arange(5))
    other = pickle.loads(pickle.dumps(store.sets["validation"]))
    assert other.store is not store and other.store.levels is not store.levels
    assert same(other.gather(np.arange(9)), store.sets["validation"].gather(np.arange(9)))


def test_the_order_that_suits_is_advised(folder: Path) -> None:
    store, _ = far(folder, memory="5kB")
    advice = store.sets["train"].advice(Order(400, 10))
    assert "shuffle='blocks' fetches each about once" in advice and "Cache(disk=" in advice
    assert store.sets["train"].advice(Order(400, 10, shuffle="blocks")) == ""
    assert far(folder, memory="1MB")[0].sets["train"].advice(Order(400, 10)) == ""


def test_two_hosts_that_hold_half_each_fetch_less_of_the_same_batches(folder: Path) -> None:
    """Two workers whose hosts have other shards at home: what a worker computes, its host mostly holds."""
    manifest = open_store(folder).manifest
    rows = [shard.rows for shard in manifest.sets["train"]]
    holders = Holders.of(rows, {"a": [0, 2, 4], "b": [1, 3, 5]})
    ends = np.cumsum(rows)
    order = Order(400, 20, seed=5)

    class Scattered:
        """As a source that fetches from the other host what its own does not hold."""

        def __init__(self, host: int) -> None:
            self.host, self.fetched, self._local = host, 0, open_store(folder).sets["train"]

        traits = Traits(runs_user_code=False, holders=holders)
        fingerprint = "scattered"

        def __len__(self) -> int:
            return 400

        def buffers(self, count: int, *, pin: bool = False) -> None:
            return None

        def gather(self, ids: np.ndarray, out: Any = None) -> Any:
            shards = np.searchsorted(ends, ids, side="right")
            self.fetched += int((shards % 2 != self.host).sum())
            return self._local.gather(ids)

    class Of(Team):
        """One of two workers, on hosts a and b; nothing is exchanged here."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self._index = index
            mesh = type(self.lines.mesh)((((0,),), ((1,),)))
            hosts = {0: "a", 1: "b"}
            self.lines = type("Two", (), {"mesh": mesh, "hosts": hosts})()  # type: ignore[assignment]

        share = property(lambda self: self._index)  # type: ignore[assignment]

    fetched = {}
    for rule in ("equal", "local"):
        sources = [Scattered(0), Scattered(1)]
        feeders = [Feeder(one, order, Shares(((0, Share(rule)),)), Of(at)) for at, one in enumerate(sources)]
        for step in range(order.steps):
            parts = [feeder.take(Slot(0, step)) for feeder in feeders]
            assert [len(one) for one in parts] == [10, 10]
            whole = np.zeros(20, np.int64)
            for one in parts:
                whole[np.asarray(one.positions)] = one.ids
            assert np.array_equal(whole, order.ids(0, step))
        fetched[rule] = sum(one.fetched for one in sources)
    assert fetched["equal"] > 150 and fetched["local"] < 0.4 * fetched["equal"]


def test_a_device_holds_a_set_that_fits_its_budget(folder: Path) -> None:
    local, cpu = open_store(folder).sets["train"], torch.device("cpu")
    ids = np.array([399, 0, 7, 7])
    for budget, fits in ((10**6, True), (1000, False), (0, False)):
        store, bring = far(folder, device=budget)
        held = resident(store.sets["train"], cpu, free=10**9)
        assert (held is not None) == fits
        if held is None:
            continue
        assert same(held.gather(ids), local.gather(ids)) and held.hits == 4
        fetched = bring.nbytes
        part = resident(Subset(store.sets["train"], np.arange(100, 200)), cpu, free=10**9)
        assert part is not None and same(part.gather(np.array([5, 99])), local.gather(np.array([105, 199])))
        assert bring.nbytes == fetched  # shared with the whole
        assert resident(store.sets["validation"], cpu, free=100) is None
    assert resident(far(folder)[0].sets["train"], cpu, free=10**9) is None  # not asked for


def test_a_device_holds_arrays_in_a_quarter_of_its_memory() -> None:
    source, cpu = ArraySource({"x": np.zeros((100, 4), np.float32)}), torch.device("cpu")
    assert resident(source, cpu, free=4 * 1600 - 1) is None
    held = resident(source, cpu, free=4 * 1600)
    assert held is not None and held.gather(np.arange(3))["x"].shape == (3, 4)
    assert resident(source, cpu, free=0) is not None  # it is there already
    data = cordee.data.arrays(np.zeros((100, 4)), np.zeros(100), validation=0.1).on_device("3kB")
    assert resident(data.train, cpu, free=10**9) is None
    assert resident(data.on_device(5000).train, cpu, free=10**6) is not None
