"""Files of images, text, records and arrays as chains, and rows of Python's: `images`, `lines`, `tfrecord`, ..."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cordee.feed.chain import Chain
from cordee.feed.columns import Kind
from cordee.feed.places import What, resolve
from cordee.feed.sources.arrays import ArrayReader, array_reader
from cordee.feed.sources.cifar import CifarReader
from cordee.feed.sources.images import ImageReader
from cordee.feed.sources.kinds import as_kinds
from cordee.feed.sources.lines import LineReader
from cordee.feed.sources.pictures import Form
from cordee.feed.sources.rows import row_reader
from cordee.feed.sources.tfrecord import TFRecordReader
from cordee.feed.steps.split import Split

Types = Mapping[str, Kind | str] | None
"""Kinds of columns: `float32`, `uint8 (28, 28)`, `int64 (any length)`, `text`."""


def images(
    what: What,
    *,
    size: int | tuple[int, int] | None = None,
    label: str | None = "folder",
    classes: Sequence[str] = (),
    mode: str = "RGB",
    fit: str = "crop",
    layout: str = "CHW",
    on_error: str = "stop",
) -> Chain:
    """Image files, one folder per class: x is uint8 (channels, height, width), y the class, by folders' names sorted.

    Images are turned as their EXIF data say, and brought to one `size`, (height, width): by `fit="crop"` (the middle),
    `"pad"` or `"stretch"`. `mode` is `RGB`, `L` (grey) or `RGBA`; margins are white, and so is what is transparent. The
    class is the name of the `folder` that a file lies in, or of the `top` one; `label=None`: no y. `on_error="skip"`
    leaves out files that cannot be decoded, and counts them. `layout="HWC"`: channels last.
    """
    square = (size, size) if isinstance(size, int) else size
    form = Form(None if square is None else tuple(square), mode, fit, layout)  # type: ignore[arg-type]
    return Chain(ImageReader(form, label, tuple(classes), on_error), what)


def lines(
    what: What,
    *,
    per: str = "line",
    encoding: str = "utf-8",
    label: str | None = None,
    classes: Sequence[str] = (),
    on_error: str = "stop",
) -> Chain:
    """Text files, also gzip'ed: the column `text` has one line per row, or one whole file (`per="file"`).

    With `label="folder"` y is the class of a file, by the name of the folder that it lies in; `"top"`: by that of the
    first folder below what was named. `on_error="skip"` leaves out what is no text in this encoding, and counts it.
    """
    return Chain(LineReader(per, encoding, label, tuple(classes), on_error), what)


def tfrecord(what: What, *, features: Types = None, label: str | None = None, on_error: str = "stop") -> Chain:
    """TFRecord files of `tf.train.Example`, also gzip'ed, read without TensorFlow; every checksum is compared.

    Columns are the `features` of the first records, or those that are given: `features={"image": "uint8 (28, 28)",
    "label": "int64", "words": "int64 (any length)", "title": "text"}`. Bytes are read as numbers of that type.
    `on_error="skip"` leaves out damaged records, and counts them.
    """
    return Chain(TFRecordReader(tuple(as_kinds(features or {}).items()), on_error), what, label=label)


def cifar10(what: What, *, on_error: str = "stop") -> Chain:
    """CIFAR-10's binary files: x is uint8 (3, 32, 32), y the class; `test_batch.bin` is the test set.

    `split(0.9, 0.1, 0, by=("path", {"test": "test_batch.bin"}))` holds out validation samples too. `on_error="skip"`
    leaves out images that are cut off or have no possible label, and counts them.
    """
    return Chain(CifarReader(10, on_error), what, parts=_by_name("test_batch.bin*"))


def cifar100(what: What, *, on_error: str = "stop") -> Chain:
    """CIFAR-100's binary files: as `cifar10`, and `coarse`, the group of classes; `test.bin` is the test set."""
    return Chain(CifarReader(100, on_error), what, parts=_by_name("test.bin*"))


def array_files(what: What, *, name: str = "x", on_error: str = "stop", **beside: What) -> Chain:
    """Arrays in files (npy, npz, IDX), near or far, read in pieces; rows of several files follow one another.

    A file of one array is the column `name`; those of an npz file have their own names. `y="labels/*.npy"` names as
    many files again, in the same order, for another column. What lies on this host's disk needs no copy:
    `cordee.data.npy`, `npz` and `idx`. `on_error="skip"` takes the whole rows that a file which was cut off has, leaves
    out files that cannot be read, and counts both, as one each.
    """
    if not beside:
        return Chain(ArrayReader(name, on_error=on_error), what)
    places = resolve(what, ArrayReader.endings)
    others = {column: resolve(one, ArrayReader.endings) for column, one in beside.items()}
    return Chain(array_reader(places, name, others, on_error), places)


def rows(
    given: Any,
    *,
    names: Sequence[str] = (),
    kinds: Types = None,
    label: str | None = None,
    version: str | None = None,
    draws: bool = False,
    on_error: str = "stop",
) -> Chain:
    """What a function or a dataset gives, row by row: written to a store once, and in any order from then on.

    A function that begins anew each time (a generator function), an `IterableDataset` of PyTorch or Hugging Face, or a
    map-style dataset, whose samples are then decoded once instead of in each epoch. A pair is x and y; a dict has its
    own names; `names` are for longer tuples. The store is made anew when the code, or what the dataset holds, has
    changed; where that cannot be seen, count up a `version`. `draws=True` keeps what a dataset's samples draw.
    `on_error="skip"` leaves out rows that raise an error or are of another kind than the first ones, and counts them;
    a generator ends with its first error.
    """
    reader = row_reader(given, names=names, kinds=kinds, version=version, draws=draws, on_error=on_error)
    return Chain(reader, None, label=label)


def _by_name(pattern: str) -> Split:
    return Split(by="path", patterns=(("test", pattern),))
