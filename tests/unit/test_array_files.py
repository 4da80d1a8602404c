"""Arrays in files, read in chunks: npy, npz, IDX; and CIFAR's files."""

from __future__ import annotations

import gzip
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordee.core.errors import DataError
from cordee.feed.columns import Kind
from cordee.feed.sources.arrays import ArrayReader, array_reader
from cordee.feed.sources.cifar import CifarReader
from rawfiles import place_of, read, read_places

X = np.random.default_rng(0).normal(size=(100, 3, 5))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cordee.feed.sources.arrays.CHUNK_BYTES", 1000)
    monkeypatch.setattr("cordee.feed.sources.cifar._AT_ONCE", 7)


@pytest.mark.parametrize(
    "array",
    [
        X,
        X.astype(">f4"),
        np.asfortranarray(X[:, :, 0]),
        X[:, 0, 0] > 0,
        X[:0],
        np.arange(100, dtype=np.uint8),
        np.asfortranarray((X * 100).astype(">i2")),
    ],
)
@pytest.mark.parametrize("start", [0, 37])
def test_npy_of_any_order(array: Any, start: int, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "b.npz", first=array, second=np.arange(len(array)))
    np.savez_compressed(tmp_path / "c.npz", first=array, second=np.arange(len(array)))
    if not len(array):
        assert list(ArrayReader().chunks(place_of(tmp_path / "a.npy"), {"x": Kind("float64", (3, 5))})) == []
        return
    found = {"a": read(ArrayReader(), tmp_path / "a.npy", start=start)["x"]}
    for name in "bc":
        columns = read(ArrayReader(), tmp_path / f"{name}.npz", start=start)
        found[name] = columns["first"]
        assert columns["second"].tolist() == list(range(start, 100))
    for one in found.values():
        assert isinstance(one, np.ndarray) and one.dtype == array.dtype.newbyteorder("=") and one.dtype.isnative
        np.testing.assert_array_equal(one, array[start:])


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_with_labels_from_a_file_beside_it(ending: str, tmp_path: Path) -> None:
    """As MNIST has them."""
    images, labels = (X * 100).astype(np.uint8), np.arange(100, dtype=np.uint8)
    paths = {}
    for name, array in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
        raw = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
        paths[name] = tmp_path / (name + ending)
        paths[name].write_bytes(gzip.compress(raw) if ending else raw)
    first, second = (place_of(path) for path in paths.values())
    columns = read_places(array_reader([first], beside={"y": [second]}), [first], start=13)
    np.testing.assert_array_equal(columns["x"], images[13:])
    assert columns["y"].tolist() == list(range(13, 100))
    with pytest.raises(DataError, match="2 files for 'y', but 1 for 'x'"):
        array_reader([first], beside={"y": [second, first]})


def test_texts_in_arrays_become_texts(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array(["eins", "zwei", "", "drei Grüße"]))
    np.save(tmp_path / "b.npy", np.array([b"one", b""]))
    assert read(ArrayReader(), tmp_path / "a.npy")["x"].tolist() == ["eins", "zwei", "", "drei Grüße"]
    assert read(ArrayReader(), tmp_path / "b.npy")["x"].tolist() == ["one", ""]


def damaged(root: Path, form: str) -> Path:
    path = root / "a.npy"
    if form == "object":
        np.save(path, np.array([{}, []], dtype=object), allow_pickle=True)
    elif form == "object in npz":
        np.savez(root / "a.npz", x=np.array([{}], dtype=object), y=np.arange(3))
        path = root / "a.npz"
    elif form == "times":
        np.save(path, np.array(["2020-01-01"], dtype="datetime64[D]"))
    elif form == "single":
        np.save(path, np.float32(3))
    elif form == "lengths":
        np.savez(root / "a.npz", x_train=X, x_test=X[:5])
        path = root / "a.npz"
    elif form == "short":
        np.save(path, X)
        path.write_bytes(path.read_bytes()[:-9])
    elif form == "short npz":
        np.savez_compressed(root / "a.npz", x=X)
        path = root / "a.npz"
        path.write_bytes(path.read_bytes()[:-400])
    elif form == "torch":
        path = root / "model.pt"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model/data.pkl", b"x")
    elif form == "idx":
        path.write_bytes(b"\0\0\x07\x01")
    elif form == "crc":
        np.savez(root / "a.npz", x=X)
        path = root / "a.npz"
        raw = bytearray(path.read_bytes())
        raw[3000] ^= 1
        path.write_bytes(bytes(raw))
    else:
        path.write_text("a,b\n1,2\n")
    return path


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("object", "object type, which would need unpickling"),
        ("object in npz", "array 'x' in .*object type"),
        ("times", "astype\\('int64'\\)"),
        ("single", "a single value"),
        ("lengths", "x_train: 100, x_test: 5.*cordee.data.npz"),
        ("short", "ends 9 bytes before its head says"),
        ("short npz", "a.npz cannot be read.*fetch it again"),
        ("crc", "a.npz cannot be read.*CRC"),
        ("torch", "a ZIP archive that holds model/data.pkl"),
        ("idx", "does not begin like an IDX file"),
        ("csv", "is no file of arrays"),
    ],
)
def test_files_that_cannot_be_read_are_refused(form: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        read(ArrayReader(), damaged(tmp_path, form))


def test_files_of_different_kinds_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X)
    np.save(tmp_path / "b.npy", X[:, :2])
    with pytest.raises(DataError, match=r"b.npy: x is float64 \(2, 5\), in the first file it is float64 \(3, 5\)"):
        read(ArrayReader(), tmp_path / "a.npy", tmp_path / "b.npy")


# ------------------------------------------------------------- CIFAR


def write_cifar(path: Path, labels: list[list[int]]) -> Path:
    draws = np.random.default_rng(len(labels))
    rows = [bytes(one) + draws.integers(0, 256, 3072).astype(np.uint8).tobytes() for one in labels]
    path.write_bytes(b"".join(rows))
    return path


def test_cifar_10_and_100(tmp_path: Path) -> None:
    ten = write_cifar(tmp_path / "data_batch_1.bin", [[n % 10] for n in range(20)])
    raw = np.frombuffer(ten.read_bytes(), np.uint8).reshape(20, 3073)
    for start in (0, 5, 19):
        columns = read(CifarReader(), ten, start=start)
        assert columns["y"].tolist() == [n % 10 for n in range(start, 20)]
        np.testing.assert_array_equal(columns["x"], raw[start:, 1:].reshape(-1, 3, 32, 32))
    hundred = write_cifar(tmp_path / "train.bin", [[n, 5 * n] for n in range(20)])
    columns = read(CifarReader(100), hundred)
    assert columns["coarse"].tolist() == list(range(20)) and columns["y"].tolist() == list(range(0, 100, 5))


def test_cifar_files_of_another_size_or_with_other_labels_are_refused(tmp_path: Path) -> None:
    good = write_cifar(tmp_path / "data_batch_1.bin", [[1]] * 9)
    with pytest.raises(DataError, match=r"no whole number of images of CIFAR-100.*CIFAR-10: cordee.data.cifar10"):
        CifarReader(100).schema([place_of(good)])
    cut = tmp_path / "data_batch_2.bin"
    cut.write_bytes(good.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"data_batch_2.bin has 27,656 bytes.*cut off"):
        CifarReader().schema([place_of(good), place_of(cut)])
    with pytest.raises(DataError, match="row 9: the file ends within this image"):
        list(CifarReader().chunks(place_of(cut), {}))
    with pytest.raises(DataError, match=r"row 9: the label \[10\] is none of CIFAR-10"):
        read(CifarReader(), write_cifar(tmp_path / "data_batch_3.bin", [[9]] * 8 + [[10]]))


# ------------------------------------------------------------- skipped and counted


def faults_of(reader: Any, *paths: Path) -> list[str]:
    places = [place_of(path) for path in paths]
    schema = reader.schema(places)
    chunks = [chunk for place in places for chunk in reader.chunks(place, schema)]
    return [str(fault).rpartition("/")[2] for chunk in chunks for fault in chunk.faults]


def test_a_file_that_was_cut_off_gives_the_rows_that_it_has(tmp_path: Path) -> None:
    np.save(tmp_path / "good.npy", X)
    short = damaged(tmp_path, "short")
    short.write_bytes(short.read_bytes()[: 128 + 57 * X[0].nbytes + 11])
    reader = ArrayReader(on_error="skip")
    np.testing.assert_array_equal(read(reader, short, tmp_path / "good.npy")["x"], np.concatenate([X[:57], X]))
    np.testing.assert_array_equal(
        read(reader, short, tmp_path / "good.npy", start=24)["x"], np.concatenate([X[24:57], X])
    )
    assert faults_of(reader, short, tmp_path / "good.npy") == ["a.npy, row 58: the file ends; 43 rows are missing"]
    with pytest.raises(DataError, match="on_error='skip'"):
        read(ArrayReader(), short)


@pytest.mark.parametrize("form", ["object", "times", "lengths", "short npz", "crc", "idx", "csv"])
def test_files_that_cannot_be_read_are_left_out_and_counted(form: str, tmp_path: Path) -> None:
    np.save(tmp_path / "good.npy", X)
    bad, reader = damaged(tmp_path, form), ArrayReader(on_error="skip")
    for paths in ((bad, tmp_path / "good.npy"), (tmp_path / "good.npy", bad)):
        np.testing.assert_array_equal(read(reader, *paths)["x"], X)
        assert len(faults_of(reader, *paths)) == 1
    with pytest.raises(DataError, match=bad.name):
        reader.schema([place_of(bad)])


def test_a_file_that_is_gone_is_no_damage(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X)
    place, reader = place_of(tmp_path / "a.npy"), ArrayReader(on_error="skip")
    schema = reader.schema([place])
    (tmp_path / "a.npy").unlink()
    with pytest.raises(DataError, match="not there any more"):
        list(reader.chunks(place, schema))
    with pytest.raises(DataError, match="on_error='later' is not known"):
        ArrayReader(on_error="later")


def test_images_of_cifar_are_left_out_one_by_one(tmp_path: Path) -> None:
    labels = [[n % 10] for n in range(20)]
    path = write_cifar(tmp_path / "a.bin", [*labels[:3], [12], *labels[4:]])
    path.write_bytes(path.read_bytes()[:-5])
    empty, good = tmp_path / "b.bin", write_cifar(tmp_path / "c.bin", labels)
    empty.write_bytes(b"")
    reader = CifarReader(on_error="skip")
    found = read(reader, path, empty, good)
    assert found["y"].tolist() == [*(n % 10 for n in range(19) if n != 3), *(n % 10 for n in range(20))]
    assert len(found["x"]) == 38
    assert faults_of(reader, path, empty, good) == [
        "a.bin, row 4: the label [12] is none of CIFAR-10",
        "a.bin, row 20: the file ends within this image",
        "b.bin, row 1: the file is empty",
    ]
    with pytest.raises(DataError, match=r"cordee\.data\.cifar10"):
        CifarReader(100, "skip").schema([place_of(good)])
