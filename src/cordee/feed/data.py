"""Data sets for a job: `arrays`, `npz`, `npy`, `idx`, `digits`, `text` and `dataset` each give a `Data`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate

from cordee.core.errors import DataError
from cordee.feed.arrays import ArraySource, is_arrow, is_frame, is_rows, is_series, refuse_frame
from cordee.feed.batch import Batch
from cordee.feed.cache.device import Budgeted
from cordee.feed.cache.settings import size_of
from cordee.feed.dataset import Collate, DatasetSource, only_iterated
from cordee.feed.features import with_late
from cordee.feed.files import existing, read_idx, read_npy, read_npz
from cordee.feed.late import Late, Transformed
from cordee.feed.notes import lacking_note, numbered_note, skipped_note
from cordee.feed.permute import permutation
from cordee.feed.source import Fields, Source, Subset
from cordee.feed.store.layout import NO_ROWS, Features, Manifest, Skipped
from cordee.feed.store.opened import open_store
from cordee.feed.text import TextSource, cut

SETS = ("train", "validation", "test")
Held = float | tuple[Any, Any] | Mapping[str, Any] | None
"""A set that is held out: a ratio of the training data, arrays (x, y) or by name of its own, or none."""


@dataclass(frozen=True)
class Data:
    """The sets of samples of a job; no sample is in two of them. Each may be a source, a dataset or arrays (x, y)."""

    train: Source
    validation: Source | None = None
    test: Source | None = None
    features: Features | None = None
    """How raw rows became these, where a chain made them: saved with the model, for `cordee.data.prepared`."""

    skipped: Skipped = NO_ROWS
    """What `on_error="skip"` left out of them."""

    def __post_init__(self) -> None:
        """Make sources of what was given."""
        for name in SETS:
            given = getattr(self, name)
            if isinstance(given, Data | MakesData):
                given = as_data(given)
                object.__setattr__(self, "skipped", self.skipped.plus(given.skipped))
            if given is not None or name == "train":
                object.__setattr__(self, name, as_source(given))

    @property
    def sets(self) -> dict[str, Source]:
        """Those that are there, by name."""
        return {name: source for name in SETS if (source := getattr(self, name)) is not None}

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of them before a training."""
        lacking = () if self.features is None else lacking_note(self.features.lacking)
        return (*skipped_note(self.skipped), *lacking, *numbered_note(self.classes.get("y", ())))

    @property
    def classes(self) -> dict[str, tuple[Any, ...]]:
        """Of fields that hold class numbers: what each number stands for, as far as a chain knows it."""
        return {} if self.features is None else dict(self.features.classes)

    def transform(self, function: Callable[[Batch], Fields]) -> Data:
        """Change the batches of all sets on their device, after the copy there, so that small numbers travel.

        `function` takes a batch and gives its fields. A row must become the same whatever rows are beside it.
        """
        late = Late(function)
        sets: dict[str, Any] = {name: Transformed(source, late) for name, source in self.sets.items()}
        return replace(self, **sets, features=with_late(self.features, late))

    def augment(self, function: Callable[[Batch], Fields]) -> Data:
        """As `transform`, for training alone; what is random is made of `cordee.data.draws(batch, count)`.

        These numbers depend on the job's seed, epoch and sample alone: training is the same on any number of workers.
        """
        late = Late(function, augments=True)
        return replace(self, train=Transformed(self.train, late), features=with_late(self.features, late))

    def on_device(self, budget: int | str) -> Data:
        """Let each set take so much of a GPU's memory, such as "8GB", if it fits as a whole; 0: always copy batches.

        Without it, sets that lie in arrays take at most a quarter of what is free.
        """
        nbytes = size_of("on_device", budget)
        sets: dict[str, Any] = {name: Budgeted(source, nbytes) for name, source in self.sets.items()}
        return replace(self, **sets)

    def statistics(self) -> dict[str, Any]:
        """What came from which level of its cache so far, in this process; empty where nothing is fetched from afar."""
        far = next((one.traits.far for one in self.sets.values() if one.traits.far is not None), None)
        return {} if far is None else dict(far.statistics())


class MakesData(ABC):
    """What makes the sets of a job when they are needed, from raw files for instance."""

    @abstractmethod
    def data(self) -> Data:
        """The sets."""


def arrays(
    x: Any = None,
    y: Any = None,
    *,
    validation: Held = None,
    test: Held = None,
    seed: int = 0,
    scale: bool = False,
    **more: Any,
) -> Data:
    """Arrays, one row per sample: x, y and `more` by name, such as `mask=...`.

    Types of NumPy arrays and tensors stay, unless `scale` asks for x as uint8 / 255 in float32. Lists, and frames and
    series of pandas, become tensors: a frame float32 (rows, columns), floats float32, whole numbers int64.
    """
    own = held_out(validation, test, scale)
    ratios = _ratios(None if "validation" in own else validation, None if "test" in own else test)
    return replace(_divide(_named({"x": x, "y": y, **more}, scale), ratios, seed), **own)


def held_out(validation: Held, test: Held, scale: bool = False) -> dict[str, Any]:
    """The sets for validation and test that were given as arrays of their own."""
    return {
        name: _named(held if isinstance(held, Mapping) else {"x": held[0], "y": held[1]}, scale)
        for name, held in (("validation", validation), ("test", test))
        if isinstance(held, tuple | Mapping)
    }


def npz(
    path: str | Path, *, validation: float | None = None, test: float | None = None, seed: int = 0, scale: bool = False
) -> Data:
    """An npz file with x and y, or with x_train, y_train, x_test, y_test (and x_validation, y_validation)."""
    found = read_npz(path)
    train = "" if "x" in found else "_train"
    if f"x{train}" not in found:
        raise DataError(
            f"{Path(path).absolute()} holds {', '.join(found) or 'nothing'}: x and y were expected, or x_train, "
            "y_train, x_test and y_test; save it with these names, or load it and use cordee.data.arrays"
        )
    held: dict[str, Held] = {"validation": validation, "test": test}
    for name, ratio in held.items():
        if train and f"x_{name}" in found:
            if ratio:
                raise DataError(
                    f"{name}={ratio}, but {Path(path).absolute()} has its own x_{name}: leave the ratio out"
                )
            held[name] = (found[f"x_{name}"], found.get(f"y_{name}"))
    return arrays(found[f"x{train}"], found.get(f"y{train}"), seed=seed, scale=scale, **held)


def npy(
    x_path: str | Path,
    y_path: str | Path | None = None,
    *,
    validation: float | None = None,
    test: float | None = None,
    seed: int = 0,
    scale: bool = False,
) -> Data:
    """One npy file for x and one for y, mapped rather than read."""
    y = None if y_path is None else read_npy(y_path)
    return arrays(read_npy(x_path), y, validation=validation, test=test, seed=seed, scale=scale)


def idx(folder: str | Path, validation: float = 0.0, *, seed: int = 0, scale: bool = False) -> Data:
    """A folder with the four files of MNIST (IDX, plain or .gz): uint8 images (n, height, width) and int64 labels."""
    train, test = (
        (_idx_file(folder, f"{name}-images", 3), _idx_file(folder, f"{name}-labels", 1).astype(np.int64))
        for name in ("train", "t10k")
    )
    return arrays(*train, validation=validation, test=test, seed=seed, scale=scale)


def digits(validation: float = 0.1, test: float = 0.1, *, seed: int = 0) -> Data:
    """The 1,797 handwritten digits of 8 x 8 pixels from scikit-learn: x float32 (64,) in 0 .. 1, y int64."""
    found = read_npz(Path(__file__).with_name("digits.npz"))
    x = found["x"].astype(np.float32) / np.float32(16)
    return arrays(x, found["y"].astype(np.int64), validation=validation, test=test, seed=seed)


def text(
    path: str | Path | Sequence[str | Path],
    window: int = 128,
    stride: int | None = None,
    validation: float = 0.1,
    test: float = 0.0,
) -> Data:
    """The bytes of one or several files in windows; what is held out is the end, so that no window overlaps it."""
    paths = [path] if isinstance(path, str | Path) else list(path)
    places = [existing(place, "a text file") for place in paths]
    texts = [np.memmap(place, dtype=np.uint8, mode="r") for place in places if place.stat().st_size]
    ratios = _ratios(validation, test)
    parts = zip(cut(texts, ratios), ratios, strict=True)
    return Data(*(TextSource(part, window, stride) if ratio else None for part, ratio in parts))  # type: ignore[arg-type]


def dataset(train: Any, validation: Any = None, test: Any = None, *, collate: Collate | None = None) -> Data:
    """Any PyTorch map-style datasets, with their own `collate` function if needed."""
    return Data(*(None if given is None else _from_dataset(given, collate) for given in (train, validation, test)))  # type: ignore[arg-type]


def as_data(given: Any) -> Data:
    """What a job was given as data: a `Data`, a dict of sets, or what `as_source` takes."""
    if isinstance(given, Data):
        return given
    if isinstance(given, MakesData):
        return given.data()
    if isinstance(given, str | Path):
        return _of_store(given)
    if isinstance(given, Mapping) and "train" in given and set(given) <= set(SETS):
        return Data(**given)
    return Data(given)


def as_source(given: Any) -> Source:
    """One set of samples: a source, a dataset, an array, (x, y), a dict of arrays or a list of samples."""
    if isinstance(given, Source):
        return given
    if isinstance(given, Data | MakesData):
        data = as_data(given)
        if data.validation is not None or data.test is not None:
            raise DataError("this chain is split into several sets: give one of them, chain.data().validation say")
        return data.train
    if is_frame(given) or is_arrow(given):
        raise refuse_frame(given)
    if isinstance(given, np.ndarray | torch.Tensor) or is_series(given):
        return _named({"x": given})
    if isinstance(given, Mapping):
        return ArraySource(given)
    if isinstance(given, tuple) and len(given) > 1 and all(is_rows(part) for part in given):
        if len(given) == 2:
            return _named({"x": given[0], "y": given[1]})
        raise DataError(
            f"{len(given)} arrays do not say what each of them is. Name them: data={{'x': x, 'mask': mask, 'y': y}}, "
            "or cordee.data.arrays(x=x, mask=mask, y=y, validation=0.1), which also holds out samples. batch.fields "
            "has them by these names"
        )
    indexed = hasattr(given, "__getitem__") and hasattr(given, "__len__")
    plain = isinstance(given, tuple | list | str | bytes)
    if _is_samples(given) or (not plain and (indexed or hasattr(given, "__iter__"))):
        return _from_dataset(given, None)
    if callable(given):
        name = getattr(given, "__name__", type(given).__name__)
        raise only_iterated(f"the function {name}", name)
    listed = "; samples in a list or tuple: cordee.data.dataset(samples)" if isinstance(given, tuple | list) else ""
    raise DataError(
        f"data of type {type(given).__name__} is not understood: give one of cordee.data's, a PyTorch map-style "
        f"dataset, or arrays (x, y){listed}"
    )


def _of_store(path: str | Path) -> Data:
    """The sets of a store in a folder."""
    if "://" in str(path):
        raise DataError(f"data={str(path)!r}: a store elsewhere is given as cordee.data.store({str(path)!r})")
    if Path(path).is_file():
        raise DataError(
            f"data={str(path)!r} is a file, not a store: give what reads it, such as cordee.data.csv({str(path)!r}), "
            "or build a store of it with `cordee data build`"
        )
    store = open_store(path)
    return data_of_store(store.manifest, store.sets, str(path))


def data_of_store(manifest: Manifest, sets: Mapping[str, Source], named: str) -> Data:
    """The sets of a store, with what its chain found in the training rows."""
    if "train" not in sets:
        raise DataError(f"the store {named} has no set for training: it has {', '.join(sets) or 'no rows'}")
    return Data(sets["train"], sets.get("validation"), sets.get("test"), manifest.features, manifest.left_out)


def _is_samples(given: Any) -> bool:
    """Whether it can only be a list of samples: [x, y] may be arrays, [(x, y), (x, y)] sets for training and test."""
    long = isinstance(given, list) and len(given) > 3
    return long and any(
        all(isinstance(one, kind) for one in given) for kind in ((tuple, Mapping), (np.ndarray, torch.Tensor))
    )


def _from_dataset(given: Any, collate: Collate | None) -> Source:
    if isinstance(given, DataLoader):
        own = given.collate_fn is not default_collate
        give = "cordee.data.dataset(loader.dataset, collate=loader.collate_fn)" if own else "loader.dataset"
        raise DataError(
            f"a DataLoader makes batches of its own, which is the job's affair here (batch=..., shuffle=...): "
            f"give {give}"
        )
    if type(given) is TensorDataset and collate is None:  # its samples lie in arrays: no need to collate them
        return ArraySource(given.tensors)
    return given if isinstance(given, Source) else DatasetSource(given, collate)


def _named(fields: Mapping[str, Any], scale: bool = False) -> ArraySource:
    """The fields that there are."""
    return ArraySource({name: one for name, one in fields.items() if one is not None}, scaled=("x",) if scale else ())


def _divide(source: Source, ratios: tuple[float, float, float], seed: int) -> Data:
    """Set random samples aside, which ones depends on seed and number of samples alone; each set keeps its order."""
    _, validation, test = ratios
    if not validation and not test:
        return Data(source)
    count = len(source)
    tests, validations = (max(1, round(count * ratio)) if ratio else 0 for ratio in (test, validation))
    if tests + validations >= count:
        raise DataError(f"validation={validation} and test={test} leave nothing of {count} samples to train on")
    shuffled = permutation(count, "split", seed)(np.arange(count, dtype=np.int64))
    parts = np.split(shuffled, (tests, tests + validations))
    held_test, held_validation, train = (Subset(source, np.sort(part)) if len(part) else None for part in parts)
    assert train is not None
    return Data(train, held_validation, held_test)


def _ratios(validation: Held, test: Held) -> tuple[float, float, float]:
    """What the sets for training, validation and test get."""
    for name, value in (("validation", validation), ("test", test)):
        if value is not None and not (isinstance(value, int | float) and 0 <= value < 1):
            raise DataError(f"{name}={value!r}: a ratio from 0 to below 1 is needed, for instance 0.1")
    held = float(validation or 0.0), float(test or 0.0)  # type: ignore[arg-type]
    if sum(held) >= 1:
        raise DataError(f"validation={validation} and test={test} leave nothing to train on: their sum must be below 1")
    return 1 - sum(held), *held


def _idx_file(folder: str | Path, name: str, dimensions: int) -> Any:
    place = Path(folder).expanduser().absolute()
    names = [f"{name}{mark}idx{dimensions}-ubyte{ending}" for mark in "-." for ending in ("", ".gz")]
    path = next((place / each for each in names if (place / each).is_file()), None)
    if path is None:
        raise DataError(
            f"{place / names[0]} is not there, nor with .gz: the four files of MNIST were expected in {place}"
        )
    return read_idx(path)
