"""Sources: the right samples, in the right type, and clear words when the data is not as it should be."""

from __future__ import annotations

import gc
import gzip
import tracemalloc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from cordee.core.errors import DataError
from cordee.feed import data
from cordee.feed.arrays import ArraySource
from cordee.feed.cache.device import upload
from cordee.feed.source import Subset, map_tensors
from cordee.feed.text import TextSource

IDS = np.array([3, 0, 3, 9])
X = np.arange(30, dtype=np.float32).reshape(10, 3)
Y = np.arange(10) * 10


@pytest.mark.parametrize(
    "x",
    [
        X,
        X.astype(np.float64),
        X.astype(np.uint8),
        X > 4,
        X.astype(">f4"),
        np.asfortranarray(X),
        torch.from_numpy(X),
        torch.from_numpy(X).to(torch.bfloat16),
        torch.from_numpy(X).t().contiguous().t(),
        torch.from_numpy(X).requires_grad_(),
    ],
    ids=lambda x: str(x.dtype),
)
def test_arrays_keep_type_and_rows(x: Any) -> None:
    batch = ArraySource({"x": x, "y": Y}).gather(IDS)
    expected = (
        x.detach()[IDS] if isinstance(x, torch.Tensor) else torch.from_numpy(x.astype(x.dtype.newbyteorder("="))[IDS])
    )
    assert batch["x"].dtype == expected.dtype
    assert torch.equal(batch["x"], expected)
    assert batch["y"].tolist() == [30, 0, 30, 90]


def test_buffers_are_filled_in_place_and_a_short_batch_is_a_view() -> None:
    source = ArraySource({"x": X, "y": Y})
    buffers = source.buffers(8)
    batch = source.gather(IDS, buffers)
    assert batch["x"].data_ptr() == buffers["x"].data_ptr()
    assert batch["x"].shape == (4, 3)
    assert torch.equal(batch["x"], torch.from_numpy(X[IDS]))


def test_arrays_without_names_give_a_tuple() -> None:
    x, y = ArraySource([X, Y]).gather(IDS)
    assert torch.equal(x, torch.from_numpy(X[IDS]))
    assert y.tolist() == [30, 0, 30, 90]


def test_scaled_bytes_become_floats_from_0_to_1() -> None:
    pixels = np.array([[0, 51], [255, 102]], dtype=np.uint8)
    batch = data.arrays(pixels, scale=True).train.gather(np.array([1, 0]))
    assert batch["x"].dtype == torch.float32
    assert torch.allclose(batch["x"], torch.tensor([[1.0, 0.4], [0.0, 0.2]]))
    with pytest.raises(DataError, match="uint8"):
        data.arrays(X, scale=True)


@pytest.mark.parametrize("ids", [[-1], [10]])
def test_ids_outside_are_refused_and_not_clipped(ids: list[int]) -> None:
    for source in (
        ArraySource({"x": X}),
        data.dataset(Squares()).train,
        TextSource([np.arange(30, dtype=np.uint8)], 2, 3),
    ):
        with pytest.raises(IndexError):
            source.gather(np.array(ids))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((X, Y[:9]), "x: 10, y: 9"),
        ((X[:0], Y[:0]), "no samples"),
        ((np.array([None, 1]),), "x: values of type object"),
        ((np.array(["a", "b"]),), "x: values of type <U1"),
        ((np.float32(3),), "single value"),
    ],
)
def test_arrays_that_do_not_fit(given: tuple, words: str) -> None:
    with pytest.raises(DataError, match=words):
        data.arrays(*given)


def test_the_fingerprint_follows_content_type_and_shape() -> None:
    changed = X.copy()
    changed[5, 1] += 1
    sources = [ArraySource({"x": each}) for each in (X, changed, X.astype(np.float64), X.reshape(10, 1, 3), X[:9])]
    sources += [ArraySource({"z": X}), Subset(sources[0], IDS), Subset(sources[0], IDS[:3])]
    assert len({source.fingerprint for source in sources}) == len(sources)
    assert ArraySource({"x": torch.from_numpy(X.copy())}).fingerprint == sources[0].fingerprint


@pytest.mark.parametrize("samples", [3, 10, 1797])
def test_ratios_give_disjoint_stable_sets(samples: int) -> None:
    rows = np.arange(samples)
    sets = data.arrays(rows, validation=0.1, test=0.25)
    parts = [part.gather(np.arange(len(part)))["x"] for part in (sets.train, sets.validation, sets.test)]
    assert torch.equal(torch.cat(parts).sort().values, torch.from_numpy(rows))
    assert len(parts[1]) == max(1, round(samples * 0.1))
    again = data.arrays(rows, validation=0.1, test=0.25)
    assert torch.equal(parts[2], again.test.gather(np.arange(len(again.test)))["x"])
    other = data.arrays(rows, validation=0.1, test=0.25, seed=4)
    assert samples < 100 or other.test.fingerprint != again.test.fingerprint


@pytest.mark.parametrize("ratios", [{"validation": 1.0}, {"validation": -0.1}, {"validation": 0.5, "test": 0.5}])
def test_ratios_that_leave_nothing(ratios: dict) -> None:
    with pytest.raises(DataError, match="validation="):
        data.arrays(X, Y, **ratios)


def test_held_out_arrays_of_their_own() -> None:
    sets = data.arrays(X, Y, validation=(X[:4], Y[:4]), test=0.2)
    assert (len(sets.train), len(sets.validation), len(sets.test)) == (8, 4, 2)


def test_npz_in_both_forms(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", x=X, y=Y)
    np.savez(tmp_path / "four.npz", x_train=X, y_train=Y, x_test=X[:2], y_test=Y[:2])
    two, four = data.npz(tmp_path / "two.npz", validation=0.2), data.npz(tmp_path / "four.npz", validation=0.2)
    assert (len(two.train), len(two.validation), two.test) == (8, 2, None)
    assert (len(four.train), len(four.validation), len(four.test)) == (8, 2, 2)
    assert four.test.gather(np.array([1]))["y"].tolist() == [10]
    with pytest.raises(DataError, match="its own x_test"):
        data.npz(tmp_path / "four.npz", test=0.1)


def test_npy_is_mapped_without_a_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    batch = data.npy(tmp_path / "x.npy", tmp_path / "y.npy").train.gather(IDS)
    assert torch.equal(batch["x"], torch.from_numpy(X[IDS]))
    assert batch["y"].tolist() == [30, 0, 30, 90]
    assert not recwarn.list


def test_objects_in_files_are_never_unpickled(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}, None], dtype=object)
    np.savez(tmp_path / "objects.npz", x=X[:2], y=objects)
    np.save(tmp_path / "objects.npy", objects)
    with pytest.raises(DataError, match=r"'y' in .*objects\.npz.*unpickling"):
        data.npz(tmp_path / "objects.npz")
    with pytest.raises(DataError, match=r"objects\.npy.*unpickling"):
        data.npy(tmp_path / "objects.npy")


def test_files_that_are_missing_or_something_else(tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"junk" * 100)
    np.savez(tmp_path / "names.npz", images=X)
    np.save(tmp_path / "one.npy", X)
    for read in (data.npz, data.npy, data.text):
        with pytest.raises(DataError, match=str(tmp_path / "missing")):
            read(tmp_path / "missing")
    for read in (data.npz, data.npy):
        with pytest.raises(DataError, match=r"is not an np[yz] file"):
            read(tmp_path / "junk")
    with pytest.raises(DataError, match=r"holds images.*x and y were expected"):
        data.npz(tmp_path / "names.npz")
    with pytest.raises(DataError, match=r"cordee\.data\.npy"):
        data.npz(tmp_path / "one.npy")
    with pytest.raises(DataError, match=r"cordee\.data\.npz"):
        data.npy(tmp_path / "names.npz")
    for read, name in ((data.npz, "names.npz"), (data.npy, "one.npy")):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:60])
        with pytest.raises(DataError, match=rf"{name} is damaged"):
            read(tmp_path / name)


def write_idx(path: Path, array: np.ndarray) -> None:
    raw = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes() + array.tobytes()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def test_idx_folders_plain_and_compressed(tmp_path: Path) -> None:
    images = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
    labels = np.arange(5, dtype=np.uint8)
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", images)
    write_idx(tmp_path / "train-labels-idx1-ubyte", labels)
    write_idx(tmp_path / "t10k-images.idx3-ubyte", images[:2])
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte is not there"):
        data.idx(tmp_path)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", labels[:2])
    sets = data.idx(tmp_path, validation=0.2)
    assert (len(sets.train), len(sets.validation), len(sets.test)) == (4, 1, 2)
    batch = sets.test.gather(np.array([1]))
    assert torch.equal(batch["x"], torch.from_numpy(images[1:2]))
    assert (batch["y"].tolist(), batch["y"].dtype) == ([1], torch.int64)

    cut_off = tmp_path / "train-labels-idx1-ubyte"
    cut_off.write_bytes(cut_off.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"12 bytes where its head promises 13"):
        data.idx(tmp_path)


def test_digits_come_with_the_package() -> None:
    sets = data.digits()
    assert (len(sets.train), len(sets.validation), len(sets.test)) == (1437, 180, 180)
    batch = sets.train.gather(np.arange(1437))
    assert (batch["x"].shape, batch["x"].dtype) == ((1437, 64), torch.float32)
    assert (float(batch["x"].min()), float(batch["x"].max())) == (0.0, 1.0)
    assert sorted(batch["y"].unique().tolist()) == list(range(10))


def test_text_in_windows_with_the_next_byte(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(range(11)))
    (tmp_path / "b").write_bytes(bytes(range(100, 108)))
    source = data.text([tmp_path / "a", tmp_path / "b"], window=4, stride=3, validation=0.0).train
    assert len(source) == 3 + 2
    batch = source.gather(np.array([4, 0, 2]))
    assert batch["x"].tolist() == [[103, 104, 105, 106], [0, 1, 2, 3], [6, 7, 8, 9]]
    assert batch["y"].tolist() == [[104, 105, 106, 107], [1, 2, 3, 4], [7, 8, 9, 10]]
    assert batch["x"].dtype == torch.int64


def test_held_out_text_shares_no_byte_with_the_rest(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(range(100)))
    (tmp_path / "b").write_bytes(bytes(range(100, 200)))
    sets = data.text([tmp_path / "a", tmp_path / "b"], window=5, stride=1, validation=0.3, test=0.3)
    seen = []
    for part in (sets.train, sets.validation, sets.test):
        batch = part.gather(np.arange(len(part)))
        seen.append(set(batch["x"].unique().tolist()) | set(batch["y"].unique().tolist()))
    assert seen == [set(range(80)), set(range(80, 140)), set(range(140, 200))]


def test_text_that_is_too_short(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"short")
    (tmp_path / "empty").write_bytes(b"")
    for name, held in (("a", 0.0), ("a", 0.5), ("empty", 0.1)):
        with pytest.raises(DataError, match="a window of 8 needs 9"):
            data.text(tmp_path / name, window=8, validation=held)


class Squares(Dataset):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(index)]), index**2


class ManySquares(Squares):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        raise AssertionError("there is a faster way")

    def __getitems__(self, ids: list[int]) -> list[tuple[torch.Tensor, int]]:
        return [(torch.tensor([float(index)]), index**2) for index in ids]


@pytest.mark.parametrize("kind", [Squares, ManySquares])
def test_datasets_are_collated(kind: type[Squares]) -> None:
    x, y = data.as_data(kind()).train.gather(IDS)
    assert x.tolist() == [[3.0], [0.0], [3.0], [9.0]]
    assert y.tolist() == [9, 0, 9, 81]
    own = data.dataset(kind(), collate=lambda samples: {"sum": torch.tensor([y for _, y in samples])})
    assert own.train.gather(IDS)["sum"].tolist() == [9, 0, 9, 81]


def test_a_dataset_of_tensors_is_gathered_as_arrays() -> None:
    source = data.as_source(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)))
    assert isinstance(source, ArraySource)
    assert source.gather(IDS)[1].tolist() == [30, 0, 30, 90]


def test_a_dataset_that_can_only_be_iterated_is_refused() -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Any:
            return iter(())

    for give in (data.dataset, data.as_data):
        with pytest.raises(DataError, match=r"(?s)Stream can only be iterated: .*data.rows.*data.stream"):
            give(Stream())
    with pytest.raises(DataError, match=r"(?s)generator can only.*rows\(function\).*stream\(function\)"):
        data.as_data({"train": (pair for pair in [(X, Y)])})


def test_of_a_loader_its_dataset_is_wanted() -> None:
    for give in (data.dataset, data.as_data):
        with pytest.raises(DataError, match=r"batch=.*: give loader\.dataset$"):
            give(DataLoader(Squares()))
    with pytest.raises(DataError, match=r"give cordee\.data\.dataset\(loader\.dataset, collate=loader\.collate_fn\)$"):
        data.as_data({"train": DataLoader(Squares(), collate_fn=list)})


def test_a_list_of_samples() -> None:
    pairs = [(X[place], int(Y[place])) for place in range(10)]
    x, y = data.as_data(pairs).train.gather(IDS)
    assert torch.equal(x, torch.from_numpy(X[IDS])) and y.tolist() == [30, 0, 30, 90]
    named = data.as_data({"train": [{"a": x, "b": y} for x, y in pairs]}).train.gather(IDS)
    assert named["b"].tolist() == [30, 0, 30, 90]
    for unclear in ([X, X], [(X, Y), (X, Y)], (pairs, pairs), [*pairs, X], []):
        with pytest.raises(DataError, match=r"samples in a list or tuple: cordee\.data\.dataset\(samples\)"):
            data.as_data(unclear)
    assert len(data.dataset([X, Y]).train) == 2


def test_what_counts_as_data() -> None:
    source = ArraySource({"x": X})
    assert data.as_data(source).train is source
    assert data.as_data(sets := data.Data(source)) is sets
    assert set(data.as_data((X, Y)).train.gather(IDS)) == {"x", "y"}
    assert set(data.as_data({"a": X, "b": Y}).train.gather(IDS)) == {"a", "b"}
    named = data.as_data({"train": (X, Y), "test": Squares()})
    assert (len(named.train), len(named.test), named.validation) == (10, 10, None)
    for wrong in (3, [X, X], None):
        with pytest.raises(DataError, match="is not understood"):
            data.as_data(wrong)
    with pytest.raises(DataError, match="digits is not there: the folder of a store was expected"):
        data.as_data("digits")


def test_arrays_are_brought_to_a_device_once_and_go_with_their_source() -> None:
    sets = data.arrays(X, Y, validation=0.2)
    parts = [sets.train, sets.validation]
    whole = parts[0].source  # type: ignore[union-attr]
    assert isinstance(whole, ArraySource) and parts[1].source is whole  # type: ignore[union-attr]
    there = upload(whole, torch.device("meta"))
    assert upload(whole, torch.device("meta")) is there and there[0].shape == X.shape
    assert upload(ArraySource({"x": X}), torch.device("meta")) is not there
    gone = weakref.ref(there[0])
    del sets, parts, whole, there
    gc.collect()
    assert gone() is None


def test_mapped_arrays_go_to_a_device_through_a_small_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    arrays = {"x": np.arange(3_000_000, dtype=np.float32).reshape(-1, 3), "y": np.arange(1_000_000) % 256}
    arrays["scaled"] = arrays["y"].astype(np.uint8)
    for name, array in arrays.items():
        np.save(tmp_path / name, array)
    mapped = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in arrays}
    monkeypatch.setattr("cordee.feed.arrays.AT_ONCE", 100_000)
    source = ArraySource(mapped, scaled=["scaled"])
    tracemalloc.start()
    found = source.tensors(torch.device("cpu"))  # torch's own memory is not counted
    assert tracemalloc.get_traced_memory()[1] < 300_000
    tracemalloc.stop()
    assert [one.device.type for one in source.tensors(torch.device("meta"))] == ["meta"] * 3
    for one, array in zip(found, arrays.values(), strict=True):
        assert np.array_equal(one.numpy(), array) and one.numpy().dtype == array.dtype
    assert not recwarn.list


def test_sets_of_a_data_may_be_given_as_arrays() -> None:
    sets = data.Data((X, Y), (X[:4], Y[:4]), Squares())  # type: ignore[arg-type]
    assert (len(sets.train), len(sets.validation), len(sets.test)) == (10, 4, 10)  # type: ignore[arg-type]
    assert sets.train.gather(IDS)["y"].tolist() == [30, 0, 30, 90]
    source = ArraySource([X, Y])
    assert data.Data(source).train is source
    with pytest.raises(DataError, match="is not understood"):
        data.Data([X, X])  # type: ignore[arg-type]


def test_tensors_are_mapped_in_any_structure() -> None:
    doubled = map_tensors(lambda tensor: tensor * 2, {"a": (torch.ones(1), "text"), "b": [torch.ones(2)]})
    assert doubled["a"][0].tolist() == [2.0]
    assert doubled["a"][1] == "text"
    assert doubled["b"][0].tolist() == [2.0, 2.0]
