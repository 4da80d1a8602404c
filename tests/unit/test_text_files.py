"""Text files as rows: lines, Windows' ends, byte-order marks, encodings, damaged lines."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from cordee.core.errors import DataError
from cordee.feed.sources.labels import classes_of
from cordee.feed.sources.lines import LineReader
from rawfiles import place_of, places_below, read, read_places


@pytest.mark.parametrize(
    ("raw", "lines"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"one\r\ntwo\nthree", ["one", "two", "three"]),
        (b"\n\n", ["", ""]),
        (b"\r\n\n\r\n", ["", "", ""]),
        (b"a\rb\n", ["a\rb"]),
        (b"", []),
        (b"\xef\xbb\xbfone\r\n\r\nthr\xc3\xa9e", ["one", "", "thrée"]),
        ("ein \u2028 zwei\n".encode(), ["ein \u2028 zwei"]),
    ],
)
def test_lines(raw: bytes, lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(raw)
    (tmp_path / "b.txt").write_bytes(b"last\n")
    assert read(LineReader(), tmp_path / "a.txt", tmp_path / "b.txt")["text"].tolist() == [*lines, "last"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252"])
@pytest.mark.parametrize("per", ["line", "file"])
def test_encodings(encoding: str, per: str, tmp_path: Path) -> None:
    text = "Grüße\r\nà côté\nlast"
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    found = read(LineReader(per, encoding), tmp_path / "a.txt")["text"].tolist()
    assert found == (["Grüße", "à côté", "last"] if per == "line" else ["Grüße\nà côté\nlast"])


def test_reading_goes_on_in_the_middle_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cordee.feed.sources.lines.BLOCK", 1000)
    lines = [f"line {number} é{'x' * (number % 50)}" for number in range(500)]
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("\r\n".join(lines).encode()))
    for start in (0, 1, 250, 499):
        assert read(LineReader(), tmp_path / "a.txt.gz", start=start)["text"].tolist() == lines[start:]


def test_a_line_that_is_no_text_is_named_or_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cordee.feed.sources.lines.BLOCK", 64)
    rows = [b"row %d" % number for number in range(100)]
    rows[40] = "é".encode("latin-1")
    rows[41] = b"\xff\xff"
    path = tmp_path / "a.txt"
    path.write_bytes(b"\n".join(rows))
    with pytest.raises(DataError, match=r"a.txt, row 41: it is no text in utf-8.*encoding='latin-1'"):
        read(LineReader(), path)
    reader = LineReader(on_error="skip")
    chunks = list(reader.chunks(place_of(path), reader.schema([])))
    found = [line for chunk in chunks for line in chunk.columns["text"].tolist()]
    assert found == [f"row {number}" for number in range(100) if number not in (40, 41)]
    assert [fault.row for chunk in chunks for fault in chunk.faults] == [41, 42]
    for start in range(0, 101, 7):
        again = list(reader.chunks(place_of(path), reader.schema([]), start))
        rest = [line for chunk in again for line in chunk.columns["text"].tolist()]
        assert rest == [f"row {number}" for number in range(start, 100) if number not in (40, 41)]
        assert [fault.row for chunk in again for fault in chunk.faults] == [row for row in (41, 42) if row > start]


def test_another_encoding_is_recognised_by_its_mark(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Grüße\n".encode("utf-16"))
    for per in ("line", "file"):
        with pytest.raises(DataError, match="encoding='utf-16'"):
            read(LineReader(per), tmp_path / "a.txt")


def test_files_in_folders_are_rows_with_classes(tmp_path: Path) -> None:
    for name, text in (("pos/1", "good\r\n"), ("pos/2", "fine"), ("neg/1", "bad"), ("so so/1", "well\n\n")):
        path = tmp_path / f"{name}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode())
    reader, places = LineReader("file", label="folder"), places_below(tmp_path)
    columns = read_places(reader, places)
    assert columns["text"].tolist() == ["bad", "good\n", "fine", "well\n\n"]
    assert columns["y"].tolist() == [0, 1, 1, 2]
    assert classes_of(reader.schema(places)) == {"y": ("neg", "pos", "so so")}


@pytest.mark.parametrize("wrong", [{"per": "word"}, {"encoding": "utf-7x"}, {"label": "name"}, {"on_error": "go"}])
def test_what_is_not_known_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=next(iter(wrong))):
        LineReader(**wrong)
