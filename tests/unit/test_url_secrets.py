"""Queries of URLs may be signatures: none stands in a store, in a run's folder or in a message."""

from __future__ import annotations

import gzip
import io
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordee
from cordee.core.errors import CordeeError, DataError
from cordee.feed.exchange.cutting import pieces_of
from cordee.feed.features import load_features, save_features

SECRET = "sEcReT"
QUERY = f"?X-Signature={SECRET}"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORDEE_CACHE", str(tmp_path / "cache"))
    return tmp_path


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A server, and the folder whose files it has."""
    folder = tmp_path / "served"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *given: Handler(*given, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    thread.join()
    server.server_close()


def png() -> bytes:
    image = pytest.importorskip("PIL.Image")
    raw = io.BytesIO()
    image.new("RGB", (4, 4)).save(raw, "png")
    return raw.getvalue()


def npy(array: Any) -> bytes:
    raw = io.BytesIO()
    np.save(raw, array)
    return raw.getvalue()


def without_secret(folder: Path, text: str) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if SECRET.encode() in path.read_bytes() or SECRET in path.name]
    assert SECRET not in text


def hashed(what: Any, **more: Any) -> Any:
    return cordee.data.lines(what, **more).hash("text", size=8)


IMAGE = bytes(3072)
READS: dict[str, tuple[Callable[..., Any], list[bytes], str]] = {
    "images": (lambda what, **more: cordee.data.images(what, label=None, **more), [b"", b"broken"], "png"),
    "lines": (hashed, [b"one\n", b"two\n\xff\xff\nthree\n"], "txt"),
    "files": (partial(hashed, per="file"), [b"one\n", b"\xff\xff\n"], "txt"),
    "cifar": (cordee.data.cifar10, [b"\1" + IMAGE, b"\1" + IMAGE + b"\3\3"], "bin"),
    "label": (cordee.data.cifar10, [b"\1" + IMAGE, b"\x63" + IMAGE], "bin"),
    "arrays": (cordee.data.array_files, [npy(np.ones((4, 2))), npy(np.ones((4, 2)))[:-8]], "npy"),
    "other": (cordee.data.array_files, [npy(np.ones((4, 2))), npy(np.ones((4, 3)))], "npy"),
    "form": (cordee.data.array_files, [npy(np.ones((4, 2))), b"no arrays"], "npy"),
    "csv": (cordee.data.csv, [b"a,b\n1,2\n", b"a,b\n1,2\n1,2,3\n"], "csv"),
}


@pytest.mark.parametrize("name", READS)
def test_of_damaged_files(
    name: str,
    served: tuple[str, Path],
    cache: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    url, folder = served
    make, raws, ending = READS[name]
    if name == "images":
        raws[0] = png()
    for number, raw in enumerate(raws):
        (folder / f"{number}.{ending}").write_bytes(raw)
    what = [f"{url}/{number}.{ending}{QUERY}" for number in range(len(raws))]
    with pytest.raises(CordeeError) as caught:
        make(what).build(cache / "stopped", processes=1)
    assert SECRET not in str(caught.value)
    chain = make(what, on_error="skip")
    store = cordee.data.store(chain.build(cache / "built", processes=1))
    assert sum(store.skipped.files.values()) == store.skipped.rows > 0
    save_features(cache, store.features)
    chain.show()
    said = capfd.readouterr()
    without_secret(cache, said.out + said.err + repr(store.skipped))


def test_of_a_file_that_is_cut_off(served: tuple[str, Path]) -> None:
    url, folder = served
    (folder / "a.txt.gz").write_bytes(gzip.compress(b"one\ntwo\n")[:-6])
    with pytest.raises(DataError, match=r"a\.txt\.gz cannot be read") as caught:
        cordee.data.lines(f"{url}/a.txt.gz{QUERY}").show()
    assert SECRET not in str(caught.value)


def test_of_files_without_a_folder_or_of_another_class(served: tuple[str, Path]) -> None:
    url, folder = served
    (folder / "a.png").write_bytes(png())
    with pytest.raises(DataError, match="has no class") as caught:
        cordee.data.images(f"{url}/a.png{QUERY}").data()
    assert SECRET not in str(caught.value)


def test_of_arrays_beside_others(served: tuple[str, Path], cache: Path) -> None:
    url, folder = served
    (folder / "x.npy").write_bytes(npy(np.ones((4, 2))))
    (folder / "y.npy").write_bytes(npy(np.arange(4)))
    chain = cordee.data.array_files(f"{url}/x.npy{QUERY}", y=f"{url}/y.npy{QUERY}").labelled("y")
    store = cordee.data.store(chain.build(cache / "built", processes=1))
    save_features(cache, store.features)
    assert load_features(cache).reader["options"]["name"] == "x"
    without_secret(cache, "")


def test_of_pieces_of_a_map_reduce(served: tuple[str, Path], cache: Path) -> None:
    url, folder = served
    (folder / "a.txt").write_bytes(b"one\ntwo\n")
    reading, pieces = pieces_of([f"{url}/a.txt{QUERY}", f"{url}/a.txt{QUERY}2"], str(cache / "items"))
    assert SECRET not in repr(pieces)
    assert len({piece.name for piece in pieces}) == 2
    assert [line for piece in pieces for line in reading.items(piece)] == ["one", "two"] * 2
