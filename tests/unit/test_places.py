"""What a user names becomes a list of files, the same on each host; far files read like near ones."""

from __future__ import annotations

import base64
import io
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cordee.core.errors import DataError
from cordee.feed.filesystem import ahead, seam
from cordee.feed.filesystem.ahead import read_ahead
from cordee.feed.filesystem.find import filesystem_of
from cordee.feed.places import Place, resolve
from harness import free_port


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "a.csv",
        "b/c.csv",
        "b/d.CSV",
        "b/readme.md",
        "b/_SUCCESS",
        "b/.c.csv.crc",
        "_temporary/e.csv",
        ".hidden/f.csv",
        "b-2/g.csv",
        "odd[1].csv",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


@pytest.mark.parametrize(
    ("named", "keys"),
    [
        ("a.csv", ["a.csv"]),
        ("", ["a.csv", "b-2/g.csv", "b/c.csv", "b/d.CSV", "odd[1].csv"]),
        ("b", ["c.csv", "d.CSV"]),
        ("b/", ["c.csv", "d.CSV"]),
        ("*.csv", ["a.csv", "odd[1].csv"]),
        ("odd[1].csv", ["odd[1].csv"]),
        ("b*/*.csv", ["b-2/g.csv", "b/c.csv"]),
        ("b*", ["b-2/g.csv", "b/c.csv", "b/d.CSV"]),
        ("**/*.csv", ["a.csv", "b-2/g.csv", "b/c.csv", "odd[1].csv"]),
        ("b/**", ["c.csv", "d.CSV", "readme.md"]),
        ("b/_*", ["_SUCCESS"]),
        ("?/[c-e].*", ["b/c.csv", "b/d.CSV"]),
    ],
)
def test_keys_are_paths_below_what_was_named(tree: Path, named: str, keys: list[str]) -> None:
    places = resolve(f"{tree}/{named}", endings=(".csv",))
    assert [place.key for place in places] == keys
    assert all(place.open().read().decode() == str(Path(place.url).relative_to(tree)) for place in places)


def test_a_list_keeps_its_order_and_tells_equal_names_apart(tree: Path) -> None:
    (tree / "b-2/c.csv").write_text("other")
    places = resolve([tree / "b/c.csv", tree / "a.csv", str(tree / "b-2")])
    assert [place.key for place in places] == ["b/c.csv", "a.csv", "b-2/c.csv", "g.csv"]
    assert resolve(places) == places
    with pytest.raises(DataError, match="is named 2 times"):
        resolve([tree / "a.csv", tree / "*.csv"])


def test_the_mark_changes_with_the_file(tree: Path) -> None:
    before = resolve(tree / "a.csv")
    os.utime(tree / "a.csv", ns=(0, 123456789))
    after = resolve(tree / "a.csv")
    assert before[0].mark != after[0].mark == "123456789"


def test_links_that_lead_back_are_entered_once(tree: Path) -> None:
    (tree / "b/loop").symlink_to(tree)
    (tree / "b/broken.csv").symlink_to(tree / "nothing")
    assert [place.name for place in resolve(tree / "b", endings=(".csv",))].count("c.csv") == 1
    (tree / "b-2/back").symlink_to(tree / "b")
    (tree / "b/forth").symlink_to(tree / "b-2")
    (tree / "b/itself.csv").symlink_to("itself.csv")
    keys = [place.key for place in resolve(f"{tree}/b/**/g.csv")]
    assert keys == ["forth/g.csv", "loop/b-2/g.csv"]


def test_pipes_in_a_folder_are_left_out(tree: Path) -> None:
    os.mkfifo(tree / "pipe.csv")
    assert "pipe.csv" not in [place.name for place in resolve(tree)]


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("nothing/x.csv", "there is no file or folder .*nothing/x.csv: .* holds .*a.csv"),
        ("*.parquet", r"nothing matches .*\*.parquet: .* holds .*a.csv"),
        ("ftp://host/x", "ftp:// is not known: give a path, or a URL of s3://"),
        ([], "an empty list"),
        (3, "int names no files"),
        ([3], "3 names no file"),
        ("  ", "names no file"),
    ],
)
def test_nothing_found_says_what_is_there(tree: Path, monkeypatch: Any, named: Any, message: str) -> None:
    monkeypatch.chdir(tree)
    with pytest.raises(DataError, match=message):
        resolve(named)


def test_a_folder_without_such_files_says_what_it_has(tree: Path) -> None:
    with pytest.raises(DataError, match=r"no file below .* ends in .parquet: it has 4 .csv, 1 .CSV, 1 .md.*/\*\*"):
        resolve(tree, endings=(".parquet",))
    (tree / "empty").mkdir()
    with pytest.raises(DataError, match="is empty: it has no files"):
        resolve(tree / "empty")
    os.mkfifo(tree / "pipe")
    with pytest.raises(DataError, match="neither a file nor a folder"):
        resolve(tree / "pipe")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tree: Path) -> None:
    (tree / "b").chmod(0)
    try:
        with pytest.raises(DataError, match="no permission to read"):
            resolve(tree / "b")
    finally:
        (tree / "b").chmod(0o755)


def test_hdfs_is_opened_by_arrow_or_says_what_it_lacks() -> None:
    # Only that the URL goes there, and how a missing library of Hadoop's is reported: no cluster is at hand.
    assert type(filesystem_of("hdfs://name:8020/data")).__name__ == "ArrowFiles"
    with pytest.raises(DataError, match=r"hdfs://name:8020 cannot be opened .*HADOOP_HOME"):
        resolve("hdfs://name:8020/data")


def test_blocks_are_read_ahead_and_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "BLOCK", 10)
    data, asked = bytes(range(95)), []

    def fetch(start: int, count: int) -> bytes:
        asked.append((start, count))
        return data[start : start + count]

    with read_ahead(fetch, len(data), "far") as file:
        assert isinstance(file, io.BufferedReader)
        raw: Any = file.raw
        assert raw.read(5) == data[:5]
        raw.seek(90)
        assert raw.read(20) == data[90:]
        raw.seek(-4, io.SEEK_END)
        assert raw.read(4) == data[-4:]
        assert len(raw._blocks) <= 1 + ahead.KEPT + ahead.AHEAD
        raw.seek(0)
        assert b"".join(iter(lambda: raw.read(7), b"")) == data
        assert len(raw._blocks) <= 1 + ahead.KEPT + ahead.AHEAD
    assert max(count for _, count in asked) == 10
    with (
        read_ahead(lambda start, count: b"short", 95, "far") as file,
        pytest.raises(DataError, match="far gave 5 bytes at 0 where 10"),
    ):
        file.read()


def test_files_of_equal_names_that_are_named_later_leave_earlier_ones_as_they_are(tmp_path: Path) -> None:
    for name in ("a/x.csv", "b/x.csv", "c/b/x.csv", "c/y.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    named = [tmp_path / "a/x.csv", tmp_path / "b", tmp_path / "c/b/x.csv", tmp_path / "c/y.csv"]
    known: list[str] = []
    for count in range(1, 5):
        places = resolve(named[:count])
        assert [place.identity for place in places[:-1]] == known
        known.append(places[-1].identity)
        assert [place.identity for place in resolve(places)] == known
    assert known == ["x.csv", "b/x.csv", "c/b/x.csv", "y.csv"]
    assert len({place.key for place in places}) == 4


# ------------------------------------------------------------- http


class Served(BaseHTTPRequestHandler):
    """Files of a dict, with or without ranges, of at most `most` bytes; `busy` makes the next answers 503."""

    files: ClassVar[dict[str, bytes]] = {}
    ranges = True
    most = 2**40
    breaks = 0
    """So many answers end early."""
    busy = 0
    status = 0
    login: ClassVar[str] = ""

    def do_GET(self) -> None:
        kind = type(self)
        data = kind.files.get(self.path.partition("?")[0].lstrip("/"))
        if self.headers.get("Authorization", "") != kind.login:
            self.send_error(401)
            return
        if kind.busy or kind.status or data is None:
            kind.busy -= bool(kind.busy)
            self.send_error(kind.status or (404 if data is None else 503))
            return
        wanted = self.headers.get("Range") if kind.ranges else None
        start, stop = 0, len(data)
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(len(data), int(last) + 1, int(first) + kind.most)
            if start >= len(data):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(data)}")
                self.send_header("Content-Length", "0")
                self.send_header("ETag", f'"{hash(data)}"')
                self.end_headers()
                return
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.send_header("Content-Length", str(stop - start))
        self.send_header("ETag", f'"{hash(data)}"')
        self.end_headers()
        if kind.breaks and stop - start > 1:
            kind.breaks -= 1
            stop -= 1
        self.wfile.write(data[start:stop])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def served() -> Iterator[tuple[str, type[Served]]]:
    kind = type("Here", (Served,), {"files": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", kind
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("ranges", [True, False])
def test_files_of_web_servers(served: Any, monkeypatch: pytest.MonkeyPatch, ranges: bool) -> None:
    monkeypatch.setattr(ahead, "BLOCK", 1000)
    url, server = served
    server.ranges, server.files = ranges, {"d/a.csv": os.urandom(12_345), "b.csv": b"", "c/a.csv": b"other"}
    server.busy = 1
    places = resolve([f"{url}/d/a.csv?token=secret", f"{url}/b.csv", f"{url}/c/a.csv"])
    assert [(place.key, place.size) for place in places] == [("d/a.csv", 12_345), ("b.csv", 0), ("c/a.csv", 5)]
    assert [place.identity for place in places] == ["a.csv", "b.csv", "c/a.csv"]
    assert places[0].shown == f"{url}/d/a.csv" and places[0].name == "a.csv"
    assert len({place.mark for place in places}) == 3 and all(place.mark for place in places)
    with places[0].open() as file:
        assert file.read() == server.files["d/a.csv"]
        file.seek(-45, io.SEEK_END)
        assert file.read() == server.files["d/a.csv"][-45:]
    assert [place.open().read() for place in places[1:]] == [b"", b"other"]


@pytest.mark.parametrize("fault", [{"most": 300}, {"breaks": 3}])
def test_a_file_comes_whole_from_servers_that_give_less_than_was_asked_for(
    served: Any, monkeypatch: pytest.MonkeyPatch, fault: dict[str, int]
) -> None:
    monkeypatch.setattr(ahead, "BLOCK", 1000)
    url, server = served
    server.files = {"a.csv": os.urandom(4_321)}
    (place,) = resolve(f"{url}/a.csv")
    for name, value in fault.items():
        setattr(server, name, value)
    with place.open() as file:
        assert file.read() == server.files["a.csv"]
    files = filesystem_of(url)
    assert files.part(f"{url}/a.csv", 1000, -1)[0] == server.files["a.csv"][1000:]
    assert files.part(f"{url}/a.csv", 4000, 1000)[0] == server.files["a.csv"][4000:]


def test_user_and_password_in_a_url_are_used_and_never_shown(served: Any) -> None:
    url, server = served
    server.files = {"a.csv": b"1,2"}
    server.login = f"Basic {base64.b64encode(b'me:p@ss').decode()}"
    given = url.replace("http://", "http://me:p%40ss@")
    (place,) = resolve(f"{given}/a.csv")
    assert place.open().read() == b"1,2" and place.shown == f"{url}/a.csv"
    server.login = "another"
    with pytest.raises(DataError, match="no permission to read") as caught:
        resolve(f"{given}/a.csv")
    for wrong in (f"{given}x/a.csv", f"{given}/a b.csv?sig=p%40ss", "http://me:p%40ss@h:x/a.csv"):
        with pytest.raises(DataError, match="cannot be asked for: a URL was expected") as caught:
            resolve(wrong)
        assert "p%40ss" not in str(caught.value)


def test_web_servers_that_do_not_give_a_file(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "BLOCK", 1000)
    url, server = served
    server.files = {"a.csv": b"x" * 5000}
    (place,) = resolve(f"{url}/a.csv")
    with pytest.raises(DataError, match=r"no file or folder .*/b.csv: .*404"):
        resolve(f"{url}/b.csv?token=secret")
    with pytest.raises(DataError, match="cannot list its files; name each"):
        resolve(f"{url}/*.csv")
    with place.open() as file:
        server.files["a.csv"] = b"y" * 5000
        with pytest.raises(DataError, match="was changed while it was read"):
            file.read()
    server.status = 403
    with pytest.raises(DataError, match=r"no permission to read .*HTTP 403"):
        resolve(f"{url}/a.csv")


def test_servers_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seam, "DEADLINE_S", 0.5)
    with pytest.raises(DataError, match="cannot be reached"):
        resolve(f"http://127.0.0.1:{free_port()}/a.csv")
    place = Place("http://127.0.0.1:1/a.csv?sig=secret", "a.csv", 3, "")
    with pytest.raises(DataError, match="cannot be reached") as caught:
        place.open()
    assert "secret" not in str(caught.value)


# ------------------------------------------------------------- s3


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """moto's server on loopback, with some objects in it; what the environment says of AWS is that server."""
    pytest.importorskip("pyarrow")
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    before = dict(os.environ)
    host, port = server.get_host_and_port()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    from pyarrow import fs

    store = fs.S3FileSystem(endpoint_override=f"{host}:{port}", scheme="http", allow_bucket_creation=True)
    store.create_dir("mine")
    for name in ("d/a.csv", "d/e/b.csv", "d/_SUCCESS", "d/note.txt", "d/with space.csv"):
        with store.open_output_stream(f"mine/{name}") as file:
            file.write(name.encode() * 1000)
    try:
        yield "s3://mine"
    finally:
        os.environ.clear()
        os.environ |= before
        server.stop()


def test_objects_of_a_bucket(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "BLOCK", 1000)
    places = resolve(f"{bucket}/d", endings=(".csv",))
    assert [place.key for place in places] == ["a.csv", "e/b.csv", "with space.csv"]
    assert all(place.mark and place.size == 1000 * len(f"d/{place.key}") for place in places)
    with places[1].open() as file:
        assert file.read() == b"d/e/b.csv" * 1000
        file.seek(-9, io.SEEK_END)
        assert file.read() == b"d/e/b.csv"
    assert [place.key for place in resolve(f"{bucket}/*/*.csv")] == ["d/a.csv", "d/with space.csv"]
    assert [place.key for place in resolve(f"{bucket}/d/**")] == ["a.csv", "e/b.csv", "note.txt", "with space.csv"]
    assert resolve(f"s3a{bucket[2:]}/d/a.csv") == resolve(f"{bucket}/d/a.csv")
    assert [place.key for place in resolve([f"{bucket}/d/e/b.csv", f"{bucket}/d/a.csv"])] == ["b.csv", "a.csv"]


def test_buckets_that_do_not_give_a_file(bucket: str, served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"there is no file or folder s3://mine/d/x.csv: s3://mine/d holds .*a.csv"):
        resolve(f"{bucket}/d/x.csv")
    with pytest.raises(DataError, match="there is no bucket 'other' at http://"):
        resolve("s3://other/x.csv")
    with pytest.raises(DataError, match="there is no bucket 'other' at http://"):
        resolve("s3://other/*.csv")
    url, server = served
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    server.status = 403
    server.do_HEAD = Served.do_GET
    with pytest.raises(DataError, match=r"no permission to read s3://mine/a.csv: check AWS_ACCESS_KEY_ID"):
        resolve("s3://mine/a.csv")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr(seam, "DEADLINE_S", 0.5)
    with pytest.raises(DataError, match=r"http://127.0.0.1:\d+ cannot be reached for s3://mine/a.csv"):
        resolve("s3://mine/a.csv")
