"""What a map-reduce reads: text files, wherever they are and however they are packed."""

from __future__ import annotations

import gzip
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import cordee
from cordee.core.errors import DataError
from cordee.feed.exchange import cutting

LINES = [f"word{n % 7} other{n % 3} Grüße" for n in range(400)]
EXPECTED = Counter(word for line in LINES for word in line.split())


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "FILE_BYTES", 700)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four files with a quarter of the lines each; two of them are packed, one under a name that does not say so."""
    parts = ["\n".join(LINES[at : at + 100]).encode() + b"\n" for at in range(0, 400, 100)]
    for name, raw in {
        "a.txt": parts[0],
        "b.txt.gz": gzip.compress(parts[1]),
        "c.txt": gzip.compress(parts[2], compresslevel=0),
        "sub/d.txt": parts[3],
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(raw)
    return tmp_path


def words_in(source: Any) -> dict[str, int]:
    def count(line: str) -> Iterator[tuple[str, int]]:
        return ((word, 1) for word in line.split())

    return dict(cordee.data.map_reduce(source, count, lambda key, values: sum(values), processes=0))


def test_packed_files_patterns_folders_and_lists(folder: Path) -> None:
    whole = dict(EXPECTED)
    assert words_in(folder) == whole
    assert words_in(str(folder / "**")) == whole
    assert words_in([folder / "a.txt", f"{folder}/[bc].txt*", folder / "sub"]) == whole
    twice = words_in([folder, folder / "a.txt"])
    assert sum(twice.values()) == sum(whole.values()) + 300, "a file that is named twice counts twice"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


def test_files_on_a_web_server(folder: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        names = ("a.txt", "b.txt.gz", "c.txt", "sub/d.txt")
        assert words_in([f"{url}/{name}" for name in names]) == dict(EXPECTED)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_texts_and_damaged_files_are_refused(folder: Path) -> None:
    with pytest.raises(DataError, match=r"no file or folder.*iter\(texts\)"):
        words_in(["some words", "and more"])
    packed = (folder / "b.txt.gz").read_bytes()
    (folder / "b.txt.gz").write_bytes(packed[:-20])
    with pytest.raises(DataError, match=r"b\.txt\.gz cannot be read"):
        words_in(folder / "b.txt.gz")
