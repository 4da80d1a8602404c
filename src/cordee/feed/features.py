"""What a model needs of its training's chain to predict on new rows: fitted steps and names of classes, as JSON."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from cordee.core.damage import write_whole
from cordee.core.errors import DataError
from cordee.feed.columns import Schema
from cordee.feed.late import Late
from cordee.feed.sources import labels as folders
from cordee.feed.sources.arrays import ArrayReader
from cordee.feed.sources.seam import Reader
from cordee.feed.steps.carried import Enter, Leave
from cordee.feed.steps.seam import Step
from cordee.feed.steps.written import classes_of, written
from cordee.feed.store.layout import Features, kinds_of

FILE = "features.json"
"""Its name in a run's folder."""
FORM = 1
_READERS = "cordee.feed.sources."


def features_of(reader: Reader, raw: Schema, labels: Sequence[str], steps: Sequence[Step]) -> Features:
    """Of a chain with fitted steps."""
    plain = [one for one in steps if not isinstance(one, Enter | Leave)]
    classes = classes_of(plain, folders.classes_of(raw))
    return Features(FORM, kinds_of(raw), tuple(labels), written(plain), (), classes, _of_reader(reader))


def with_late(features: Features | None, late: Late) -> Features | None:
    """What a model needs to predict, once its batches are changed by this function too."""
    if features is None:
        return None
    transforms = features.transforms if late.augments else (*features.transforms, late.name)
    lacking = tuple(one for one in features.lacking if one != late.shown)
    return msgspec.structs.replace(features, transforms=transforms, lacking=lacking)


def save_features(folder: Path, features: Features | None) -> None:
    """Write them into a run's folder, if there are any."""
    if features is not None:
        write_whole(folder / FILE, msgspec.json.encode(features).decode())


def load_features(run: str | Path) -> Features:
    """Of a run, by its folder."""
    path = Path(run).expanduser().absolute() / FILE
    try:
        features = msgspec.json.decode(path.read_bytes(), type=Features)
    except FileNotFoundError:
        why = "its data did not come from a chain of steps" if path.parent.is_dir() else "there is no such folder"
        raise DataError(
            f"{path} is not there: {why}. Give the model what it takes, as arrays: cordee.predict(model, x)"
        ) from None
    except (OSError, msgspec.MsgspecError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if features.form != FORM:
        raise DataError(f"{path} is of form {features.form}, but this version of Cordée reads form {FORM}")
    return features


def class_names(run: str | Path) -> tuple[Any, ...]:
    """What each class number of a run's label stands for: `class_names(run)[int(output.argmax())]`."""
    classes = load_features(run).classes
    if "y" not in classes:
        raise DataError(
            f"the label of {Path(run).absolute()} has no names of classes: its model predicts numbers, or the data had "
            "class numbers already"
        )
    return classes["y"]


def reader_of(given: Mapping[str, Any], columns: Sequence[str]) -> Reader | None:
    """The reader, for these columns alone; None where there was none that can be made again."""
    module, _, name = str(given.get("name", "")).rpartition(".")
    if not module.startswith(_READERS):
        return None
    try:
        kind = getattr(importlib.import_module(module), name, None)
        if not is_dataclass(kind):
            return None
        options = dict(given["options"])
        if "columns" in options:
            options["columns"] = list(columns)
        if "y" not in columns and "label" in options:  # of images and texts: the folder of a new file says nothing
            options["label"] = None
        reader: Any = msgspec.convert(options, kind)
    except (ImportError, LookupError, TypeError, ValueError) as error:
        raise DataError(
            f"{FILE} says that {given['name']} read the rows of the training, with settings that it does not take "
            f"({error}): the file is damaged, or of another version of Cordée. Give new rows as a frame, a dict of "
            "columns, or a list of dicts"
        ) from error
    made: Reader = reader
    return made


def _of_reader(reader: Any) -> dict[str, Any]:
    kind = type(reader)
    if not kind.__module__.startswith(_READERS) or reader.in_process:
        return {}
    if isinstance(reader, ArrayReader):  # which of the training's files lay beside others: nothing for new ones
        reader = replace(reader, beside=())
    try:
        return {"name": f"{kind.__module__}.{kind.__qualname__}", "options": msgspec.to_builtins(reader)}
    except (TypeError, NotImplementedError):
        return {}
