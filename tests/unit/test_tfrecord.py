"""TFRecord files of `tf.train.Example`, as other libraries write them."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import crc32c, masked_crc32c

from cordee.core.errors import DataError
from cordee.feed.columns import Kind, Ragged
from cordee.feed.places import Place
from cordee.feed.sources import crc32c as own
from cordee.feed.sources.kinds import TEXTS, as_kinds
from cordee.feed.sources.tfrecord import TFRecordReader
from rawfiles import place_of, read
from tfexamples import example, framed, sequence_example, write


def sample(number: int) -> dict[str, Any]:
    return {
        "image": bytes([number % 256, 0, 255, 200]),
        "label": number - 3,
        "weights": [number / 2, -1.5],
        "name": f"näme {number}",
        "tokens": [*range(number % 4), 2**40 * number, -number],
    }


def test_checksums_are_those_of_tensorboard() -> None:
    draws = np.random.default_rng(0)
    buffer = draws.integers(0, 256, 300_000).astype(np.uint8)
    starts, lengths = draws.integers(0, 100_000, 200), draws.integers(0, 900, 200)
    lengths[:12] = [0, 1, 2, 3, 4, 5, 7, 8, 9, 4096, 70_000, 200_000]
    pieces = [buffer[start : start + length].tobytes() for start, length in zip(starts, lengths, strict=True)]
    for found in (own.crcs_here(buffer, starts, lengths), own.crcs(buffer, starts, lengths)):
        assert found.tolist() == [crc32c(piece) for piece in pieces]
    assert own.masked(own.crcs(buffer, starts, lengths)).tolist() == [masked_crc32c(piece) for piece in pieces]
    assert len(own.crcs_here(buffer, starts[:0], lengths[:0])) == 0


@pytest.mark.parametrize("ending", ["tfrecord", "tfrecord.gz"])
def test_features_become_columns_in_the_order_of_the_file(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cordee.feed.sources.tfrecord.BLOCK", 20_000)  # several chunks
    path = write(tmp_path / f"a.{ending}", *(example(**sample(number)) for number in range(1000)))
    reader = TFRecordReader()
    assert reader.schema([place_of(path)]) == {
        "image": Kind("uint8", (4,)),
        "label": Kind("int64"),
        "name": TEXTS,
        "tokens": Kind("int64", ragged=True),
        "weights": Kind("float32", (2,)),
    }
    for start in (0, 1, 700, 999):
        columns = read(reader, path, start=start)
        wanted = [sample(number) for number in range(start, 1000)]
        assert columns["image"].tolist() == [list(one["image"]) for one in wanted]
        assert columns["label"].tolist() == [one["label"] for one in wanted]
        assert columns["weights"].tolist() == [one["weights"] for one in wanted]
        assert columns["name"].tolist() == [one["name"] for one in wanted]
        assert [one.tolist() for one in columns["tokens"].tolist()] == [one["tokens"] for one in wanted]


def test_given_features_are_read_as_they_are_given(tmp_path: Path) -> None:
    wave = np.arange(6, dtype="<f4").reshape(2, 3)
    path = write(tmp_path / "a.tfrecord", *(example(wave=(wave + n).tobytes(), n=n, other="x") for n in range(5)))
    kinds = as_kinds({"wave": "float32 (2, 3)", "n": "uint8"})
    columns = read(TFRecordReader(tuple(kinds.items())), path)
    np.testing.assert_array_equal(columns["wave"], np.stack([wave + n for n in range(5)]))
    assert columns["n"].dtype == np.uint8 and list(columns) == ["wave", "n"]


def test_a_feature_may_be_missing_where_lists_have_any_length(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tfrecord", example(a=[1, 2], t="one"), example(t="two"), example(a=[3]), example())
    columns = read(TFRecordReader(), path)
    assert columns["t"].tolist() == ["one", "two", "", ""]
    assert [one.tolist() for one in columns["a"].tolist()] == [[1, 2], [], [3], []]


def test_lists_that_are_not_packed_are_read_too(tmp_path: Path) -> None:
    """As the first version of protobuf's language wrote them: a tag before every value."""
    ints = b"\x08\x05" + b"\x08" + b"\xff" * 9 + b"\x01"  # 5, -1
    floats = b"\x0d" + struct.pack("<f", 2.5)
    entries = b""
    for name, number, raw in ((b"i", 3, ints), (b"f", 2, floats)):
        inner = bytes([number << 3 | 2, len(raw)]) + raw
        entry = b"\x0a\x01" + name + b"\x12" + bytes([len(inner)]) + inner
        entries += b"\x0a" + bytes([len(entry)]) + entry
    message = b"\x0a" + bytes([len(entries)]) + entries
    columns = read(TFRecordReader(), write(tmp_path / "a.tfrecord", message, message))
    assert columns["i"].tolist() == [[5, -1]] * 2 and columns["f"].tolist() == [2.5, 2.5]


def flipped(raw: bytes, at: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


RECORD = len(framed(example(a=1)))


@pytest.mark.parametrize(
    ("damage", "row", "reason", "left"),
    [
        (lambda raw: flipped(raw, 2 * RECORD + 14), 3, "the checksum of its message is wrong", [0, 1, 3, 4]),
        (lambda raw: flipped(raw, 3 * RECORD - 1), 3, "the checksum of its message is wrong", [0, 1, 3, 4]),
        (lambda raw: flipped(raw, 2 * RECORD + 7), 3, "the checksum of its length is wrong", [0, 1]),
        (lambda raw: flipped(raw, 2 * RECORD), 3, "the checksum of its length is wrong", [0, 1]),
        (lambda raw: raw[:-5], 5, "cut off", [0, 1, 2, 3]),
        (lambda raw: raw[: 4 * RECORD + 3], 5, "cut off: the file ends 3 bytes", [0, 1, 2, 3]),
        (lambda raw: raw + framed(b"no example at all"), 6, "no tf.train.Example", [0, 1, 2, 3, 4]),
        (lambda raw: raw + framed(sequence_example(s=[1, 2])), 6, "SequenceExample", [0, 1, 2, 3, 4]),
        (lambda raw: raw + framed(example(a=[1, 2])), 6, "holds 2 values, 1 were expected", [0, 1, 2, 3, 4]),
        (lambda raw: raw + framed(example(b=1)), 6, "no feature 'a'", [0, 1, 2, 3, 4]),
        (lambda raw: raw + framed(example(a=1.5)), 6, "holds floats, in other records whole numbers", [0, 1, 2, 3, 4]),
    ],
)
def test_a_damaged_record_is_named_or_left_out_and_counted(
    damage: Any, row: int, reason: str, left: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(damage(framed(*(example(a=n) for n in range(5)))))
    features = (("a", Kind("int64")),)
    with pytest.raises(DataError, match=f"a.tfrecord, row {row}: .*{reason}"):
        read(TFRecordReader(features), path)
    reader = TFRecordReader(features, on_error="skip")
    chunks = list(reader.chunks(place_of(path), reader.schema([])))
    assert [value for chunk in chunks for value in chunk.columns["a"].tolist()] == left
    assert [fault.row for chunk in chunks for fault in chunk.faults] == [row]
    assert list(reader.chunks(place_of(path), reader.schema([]), chunks[-1].next)) == []


@pytest.mark.parametrize("ending", ["tfrecord", "tfrecord.gz"])
@pytest.mark.parametrize("length", [2**31, 2**60, 2**64 - 1])
def test_a_length_that_no_record_has_is_a_damaged_record(ending: str, length: int, tmp_path: Path) -> None:
    head = struct.pack("<Q", length)
    raw = framed(example(x=1)) + head + struct.pack("<I", masked_crc32c(head)) + b"few bytes"
    path = tmp_path / f"a.{ending}"
    path.write_bytes(gzip.compress(raw) if ending.endswith("gz") else raw)
    with pytest.raises(DataError, match=rf"a.{ending}, row 2: .*longer than 2,147,483,648 bytes.*on_error='skip'"):
        read(TFRecordReader(), path)
    assert read(TFRecordReader(on_error="skip"), path)["x"].tolist() == [1]


def test_messages_do_not_show_what_is_secret_in_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.tfrecord", example(x=1), b"\xff" * 9)
    monkeypatch.setattr(Place, "open", lambda self: path.open("rb"))
    place = Place("https://host/a.tfrecord?sig=secret", "a.tfrecord", path.stat().st_size, "")
    with pytest.raises(DataError, match=r"^https://host/a.tfrecord, row 2") as caught:
        list(TFRecordReader(features=(("x", Kind("int64")),)).chunks(place, {"x": Kind("int64")}))
    assert "secret" not in str(caught.value)


def test_what_cannot_be_a_column_is_refused_with_advice(tmp_path: Path) -> None:
    words = write(tmp_path / "a.tfrecord", example(words=["a", "b"], n=1))
    with pytest.raises(DataError, match=r"a list of 2 texts.*features="):
        read(TFRecordReader(), words)
    assert read(TFRecordReader((("n", Kind("int64")),)), words)["n"].tolist() == [1]
    mixed = write(tmp_path / "b.tfrecord", example(a=1), example(a=1.0))
    with pytest.raises(DataError, match="holds floats and whole numbers"):
        read(TFRecordReader(), mixed)
    with pytest.raises(DataError, match="SequenceExample"):
        read(TFRecordReader(), write(tmp_path / "c.tfrecord", sequence_example(s=["a"])))
    with pytest.raises(DataError, match="they are empty"):
        read(TFRecordReader(), write(tmp_path / "d.tfrecord"))
    with pytest.raises(DataError, match="no kind of column"):
        as_kinds({"a": "number"})
    latin = write(tmp_path / "e.tfrecord", *([example(t="ab")] * 300), example(t="é".encode("latin-1")))
    with pytest.raises(DataError, match=r"row 301.*no text in UTF-8"):
        read(TFRecordReader(), latin)


def test_a_packed_file_that_is_cut_off_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord.gz"
    path.write_bytes(gzip.compress(framed(*(example(a=n) for n in range(1000))))[:-30])
    with pytest.raises(DataError, match=r"a.tfrecord.gz cannot be read.*fetch it again"):
        read(TFRecordReader(), path)


def test_any_bytes_are_refused_and_never_read_outside(tmp_path: Path) -> None:
    """Random messages behind right checksums: an error, or the features that they happen to hold."""
    draws = np.random.default_rng(1)
    whole = example(**sample(2))
    kinds = as_kinds({"tokens": "int64 (any length)", "image": "uint8 (4,)", "name": "text", "weights": "float32 (2,)"})
    for _ in range(150):
        raw = bytearray(whole)
        for at in draws.integers(0, len(raw), 3):
            raw[at] = draws.integers(0, 256)
        reader = TFRecordReader(tuple(kinds.items()), "skip")
        path = write(tmp_path / "a.tfrecord", whole, bytes(raw[: draws.integers(1, len(raw) + 1)]), whole)
        (chunk,) = reader.chunks(place_of(path), reader.schema([]))
        assert chunk.rows + len(chunk.faults) == 3
        first = chunk.columns["tokens"]
        assert isinstance(first, Ragged) and first.tolist()[0].tolist() == sample(2)["tokens"]
