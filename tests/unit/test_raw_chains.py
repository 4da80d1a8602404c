"""Chains of raw files as users begin them: from files to sets of tensors, by way of the store in the cache."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import cordee
from cordee.core.errors import DataError
from cordee.feed.notes import skipped_note
from cordee.feed.store.layout import MOST_FAULTS, MOST_FILES, Skipped
from tfexamples import example, write


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORDEE_CACHE", str(tmp_path / "cache"))


def whole(source: Any) -> Any:
    return source.gather(np.arange(len(source)))


def test_images_with_other_files_among_them(tmp_path: Path) -> None:
    """Class folders with spaces, files that systems leave, and one broken image."""
    root = tmp_path / "photos"
    for name, colour in (("tree frog", (0, 200, 0)), ("axolotl", (250, 180, 200))):
        (root / name).mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (30 + number, 20), colour).save(root / name / f"{number}.png")
        (root / name / "Thumbs.db").write_bytes(b"\xd0\xcf\x11")
    (root / ".DS_Store").write_bytes(b"\0")
    (root / "tree frog" / "5.png").write_bytes(b"\x89PNG\r\n broken")
    with pytest.raises(DataError, match=r"tree frog/5.png, row 1.*on_error='skip'"):
        cordee.data.images(root, size=8).data()
    chain = cordee.data.images(root, size=8, on_error="skip")
    fields = whole(chain.data().train)
    assert fields["x"].shape == (11, 3, 8, 8) and fields["x"].dtype == torch.uint8
    assert fields["y"].tolist() == [0] * 6 + [1] * 5
    assert fields["x"][0, :, 4, 4].tolist() == [250, 180, 200]
    assert chain.data().classes == {"y": ("axolotl", "tree frog")}
    data = cordee.data.images(root, size=8, on_error="skip").split(0.5, 0.0, 0.5, seed=1).data()
    assert data.test is not None and len(data.train) + len(data.test) == 11


@pytest.mark.parametrize("cut", [lambda one: one, lambda one: one.cache().select("a", "b").take(4).select("a", "b")])
def test_rows_that_were_left_out_are_counted_by_file(
    tmp_path: Path, cut: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    good = "".join(f"{number},2\n" for number in range(40))
    (tmp_path / "one.csv").write_text(f"a,b\n{good}5\n6,7,8\n{good}")
    (tmp_path / "two.csv").write_text(f"a,b\n{good}9\n")
    chain = cut(cordee.data.csv(tmp_path / "*.csv", label="b", on_error="skip"))
    note = f"3 rows could not be read and were left out: 2 of {tmp_path}/one.csv, 1 of {tmp_path}/two.csv (such as "
    data = chain.data()
    assert data.notes[0].startswith(f"{note}{tmp_path}/one.csv, row 42: ")
    chain.show(0)
    assert note in capsys.readouterr().out
    assert cordee.data.store(chain.build(tmp_path / "out")).notes == data.notes
    assert cordee.data.as_data({"train": data, "validation": chain}).skipped.rows == 6
    (tmp_path / "one.csv").write_text(f"a,b\n{good}")
    assert cordee.data.csv(tmp_path / "one.csv", label="b", on_error="skip").data().notes == ()


def test_a_store_names_files_with_bad_rows_up_to_a_bound() -> None:
    many = Skipped()
    for number in range(3 * MOST_FILES):
        many = many.plus(Skipped(2, {f"{number}.png": 2}, (f"{number}.png, row 1: broken",)))
    assert many.rows == 6 * MOST_FILES and len(many.files) == MOST_FILES and len(many.faults) == MOST_FAULTS
    assert f"2 of 4.png, {6 * MOST_FILES - 10} of other files (such as 0.png, row 1: broken; " in skipped_note(many)[0]


def test_cifar_has_its_own_test_set(tmp_path: Path) -> None:
    for name, label in (("data_batch_1", 1), ("data_batch_2", 2), ("test_batch", 9)):
        (tmp_path / f"{name}.bin").write_bytes((bytes([label]) + bytes([label] * 3072)) * 4)
    (tmp_path / "batches.meta.txt").write_text("airplane\n")
    data = cordee.data.cifar10(tmp_path).data()
    assert whole(data.train)["y"].tolist() == [1] * 4 + [2] * 4
    assert data.test is not None and whole(data.test)["x"].unique().tolist() == [9]


def test_records_texts_and_arrays(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.tfrecord", *(example(x=[float(number), n / 4], kind="ab"[n % 2]) for n in range(4)))
        np.save(tmp_path / f"x{number}.npy", np.full((4, 2), number, ">f4"))
        np.save(tmp_path / f"y{number}.npy", np.arange(4))
    fields = whole(cordee.data.tfrecord(tmp_path, label="kind").data().train)
    assert fields["x"].tolist() == [[number, n / 4] for number in range(3) for n in range(4)]
    assert fields["y"].tolist() == [0, 1] * 6
    arrays = whole(cordee.data.array_files(tmp_path / "x?.npy", y=tmp_path / "y?.npy").data().train)
    assert arrays["x"][:, 0].tolist() == [0.0] * 4 + [1.0] * 4 + [2.0] * 4 and arrays["y"].tolist() == [0, 1, 2, 3] * 3
    (tmp_path / "neg").mkdir()
    (tmp_path / "pos").mkdir()
    (tmp_path / "neg" / "1.txt").write_bytes(b"\xef\xbb\xbfbad\r\nworse\r\n")
    (tmp_path / "pos" / "1.txt").write_bytes(b"good")
    found = [(row["text"], int(row["y"])) for row in cordee.data.lines(tmp_path, label="folder")]
    assert found == [("bad", 0), ("worse", 0), ("good", 1)]


def test_rows_are_made_once(tmp_path: Path) -> None:
    made = []

    def samples() -> Iterator[Any]:
        for number in range(3000):
            made.append(number)
            yield torch.tensor([number, number / 2]), number % 3

    chain = cordee.data.rows(samples, version="1")
    first = whole(chain.data().train)
    before = len(made)
    assert before >= 3000
    again = whole(cordee.data.rows(samples, version="1").data().train)
    assert torch.equal(first["x"], again["x"]) and first["y"].tolist() == [n % 3 for n in range(3000)]
    assert len(made) - before < 1000  # looked at, not read again


def test_a_webdataset_becomes_rows(tmp_path: Path) -> None:
    """A form that has no reader here: tar files with the parts of a sample beside each other."""
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(5):
            image = io.BytesIO()
            Image.new("L", (4, 4), number * 40).save(image, "PNG")
            for name, raw in ((f"{number}.png", image.getvalue()), (f"{number}.cls", str(number).encode())):
                info = tarfile.TarInfo(name)
                info.size = len(raw)
                tar.addfile(info, io.BytesIO(raw))

    def samples() -> Iterator[Any]:
        with tarfile.open(tmp_path / "a.tar") as tar:
            members = list(tar)
            for picture, label in zip(members[::2], members[1::2], strict=True):
                content = tar.extractfile(picture), tar.extractfile(label)
                assert content[0] is not None and content[1] is not None
                yield {"x": np.asarray(Image.open(content[0])), "y": int(content[1].read())}

    with pytest.raises(DataError, match="outside of itself"):
        cordee.data.rows(samples).data()
    fields = whole(cordee.data.rows(samples, version="1").data().train)
    assert fields["y"].tolist() == list(range(5)) and fields["x"][:, 0, 0].tolist() == [0, 40, 80, 120, 160]
