"""Training from a store on a web server, or scattered over hosts: the same as from a local disk in one process."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blocks import write_store
from cordee.feed.exchange.holder import Holder
from cordee.feed.store.layout import HEAD
from exchanging import ACCESS
from harness import assert_same, train


class Quiet(SimpleHTTPRequestHandler):
    """Python's own, which knows no ranges: each part costs the whole file, and is right all the same."""

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("far") / "store"
    draw = np.random.default_rng(0)
    write_store(path, {"x": draw.random((300, 2, 3)), "y": draw.integers(0, 9, 300)}, 60, train=240, validation=60)
    return path


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("shuffle", ["full", "blocks"])
def test_the_same_curve_through_a_small_cache_shared_by_workers(
    folder: Path, url: str, tmp_path: Path, shuffle: str
) -> None:
    reference = train("far", tmp_path / "local", store=folder, shuffle=shuffle)
    run = train("far", tmp_path / "far", workers=2, store=url, cache=tmp_path / "cache", shuffle=shuffle)
    assert_same(run, reference)
    assert sum(one.stat().st_size for one in (tmp_path / "cache").iterdir() if "-" in one.name) <= 5_000
    told = run.of("feed")
    assert {one["worker"] for one in told} == {0, 1} and len(told) >= 4, "at the end of each epoch"
    fed = run.result["data"]
    last = {one["worker"]: one["fetched_bytes"] for one in told}
    assert fed["fetched_bytes"] == sum(last.values())
    assert fed["fetched"] > 0 and fed["fetched_s"] > 0 and fed["memory_hits"] > 0 and 0 < fed["hit_rate"] < 1
    assert reference.result["data"] == {}
    warned = [event["message"] for event in run.of("warning") if "shuffle='blocks'" in event["message"]]
    assert bool(warned) == (shuffle == "full")


def test_a_run_goes_on_from_afar_where_one_from_the_local_disk_was_stopped(
    folder: Path, url: str, tmp_path: Path
) -> None:
    reference = train("far", tmp_path / "whole", store=folder)
    train("far", tmp_path / "run", store=folder, stop=5)
    run = train("far", tmp_path / "run", resume=True, store=url, cache=tmp_path / "cache")
    assert run.result["steps"] == reference.result["steps"] == 18
    assert run.result["params_sha256"] == reference.result["params_sha256"]


def test_shares_by_locality_fetch_less_and_train_as_one_process(folder: Path, tmp_path: Path) -> None:
    """Each of two hosts holds every other shard; both workers fetch each shard when they need it."""
    token = tmp_path / "token"
    token.write_text(ACCESS.token)
    token.chmod(0o600)
    shards = sorted(one for one in folder.iterdir() if one.is_dir())
    for number in range(2):
        home = tmp_path / f"host{number}" / "store"
        home.mkdir(parents=True)
        shutil.copy(folder / "manifest.json", home)
        for shard in shards[number::2]:
            shutil.copytree(shard, home / shard.name)
    reference = train("scattered", tmp_path / "alone", store=folder)
    away = {}
    with ExitStack() as stack:
        holders = [
            stack.enter_context(closing(Holder(tmp_path / f"host{number}", f"127.0.0.{number + 1}:0", ACCESS)))
            for number in range(2)
        ]
        place = f"cordee://{','.join(one.place for one in holders)}/store"
        for rule in ("equal", "local"):
            log, plan = tmp_path / f"log-{rule}", f"share={rule}"
            run = train("scattered", tmp_path / rule, workers=2, plan=plan, store=place, token=token, log=log)
            assert_same(run, reference)
            fed = run.result["data"]
            assert fed["by_holder"].keys() == {one.place for one in holders}
            heads = 2 * fed["fetched"] * HEAD  # of the files of two columns
            aligned = 2 * fed["fetched"] * 64
            assert 0 <= fed["fetched_bytes"] - sum(fed["by_holder"].values()) + heads < aligned
            away[rule] = sum(int(one.read_text().split()[0]) for one in tmp_path.glob(f"log-{rule}-*"))
    assert 0 < away["local"] < 0.6 * away["equal"]
