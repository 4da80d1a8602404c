"""Which set a row belongs to: a function of seed and origin, of its file, or of one of its values."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cordee.core.errors import DataError
from cordee.core.words import did_you_mean
from cordee.feed.columns import Columns, Kind, Schema
from cordee.feed.places import Place
from cordee.feed.steps.origin import Words, draws_of, word_of, words_of
from cordee.feed.steps.seam import TEST, TRAIN, VALIDATION

NAMES = {"train": TRAIN, "validation": VALIDATION, "test": TEST}
GIVEN = "*set"
"""The column that says it, in a store that was cut off a chain."""


class Split(msgspec.Struct, frozen=True):
    """How rows are dealt to the sets for training, validation and test."""

    ratios: tuple[float, float, float] = (1.0, 0.0, 0.0)
    seed: int = 0
    by: str = "row"
    """`row`: each row by itself. `path`: whole files. Else a column as it is in the files: all rows with one value."""
    patterns: tuple[tuple[str, str], ...] = ()
    """With `path`: set and pattern of a file's key; files that match none are dealt by the ratios."""

    @property
    def key(self) -> str:
        """A text that differs between two splits that would deal otherwise."""
        return msgspec.json.encode(self).decode()

    @property
    def used(self) -> tuple[str, ...]:
        """Which sets may get rows."""
        named = {name for name, _ in self.patterns}
        return tuple(
            name
            for name, ratio in zip(NAMES, self.ratios, strict=True)
            if ratio > 0 or name in named or name == "train"
        )

    def check(self, schema: Schema) -> None:
        """Refuse a column that files do not have, or whose values are no keys."""
        if self.by in ("row", "path", GIVEN):
            return
        if self.by not in schema:
            raise DataError(
                f"split(by={self.by!r}): the files have no such column; they have {', '.join(schema)}."
                f"{did_you_mean(self.by, schema)} (by='row' deals single rows, by='path' whole files. A column that a "
                "step makes can be used after .cache())"
            )
        kind = schema[self.by]
        if kind.shape or (kind.ragged and kind != Kind("text", ragged=True)):
            raise DataError(f"split(by={self.by!r}): its entries are {kind}; a text or a single number was expected")

    def sets(self, place: Place, columns: Columns, origins: Words) -> NDArray[np.uint8]:
        """The set of each of these rows of a file."""
        if self.by == GIVEN:
            return np.asarray(columns[GIVEN], dtype=np.uint8)
        if self.by == "path":
            for name, pattern in self.patterns:
                if fnmatchcase(place.key, pattern) or fnmatchcase(place.name, pattern):
                    return np.full(len(origins), NAMES[name], np.uint8)
            one = np.array([word_of(place.identity)], dtype=np.uint64)
            return np.repeat(self._dealt(one), len(origins))
        return self._dealt(origins if self.by == "row" else words_of(columns[self.by]))

    def _dealt(self, words: Words) -> NDArray[np.uint8]:
        _, validation, test = self.ratios
        draws = draws_of(words, "split", self.seed)
        sets = np.full(len(words), TRAIN, np.uint8)
        sets[draws < test + validation] = VALIDATION
        sets[draws < test] = TEST
        return sets


def make_split(train: float, validation: float, test: float, seed: int, by: Any) -> Split:
    """A `Split` of what a user gave; `DataError` where that makes no sense."""
    ratios = (train, validation, test)
    if any(isinstance(one, bool) or not isinstance(one, int | float) or not 0 <= one <= 1 for one in ratios):
        raise DataError(f"split{ratios}: three ratios from 0 to 1 are needed, for instance split(0.8, 0.1, 0.1)")
    if abs(sum(ratios) - 1) > 1e-6:
        raise DataError(
            f"split{ratios}: the ratios add up to {sum(ratios):g}, 1 was expected, for instance split(0.8, 0.1, 0.1); "
            "sample(fraction) before it leaves rows out"
        )
    patterns: tuple[tuple[str, str], ...] = ()
    if isinstance(by, tuple | list) and len(by) == 2 and by[0] == "path" and isinstance(by[1], Mapping):
        patterns, by = tuple((str(name), str(one)) for name, one in by[1].items()), "path"
        if unknown := [name for name, _ in patterns if name not in NAMES]:
            raise DataError(f"split(by=('path', ...)): {unknown[0]!r} is no set; there are {', '.join(NAMES)}")
    if not isinstance(by, str):
        raise DataError(
            f"split(by={by!r}): expected 'row', 'path', the name of a column, or "
            "('path', {'validation': 'val/*', 'test': 'test/*'})"
        )
    if train == 0 and not any(name == "train" for name, _ in patterns):
        raise DataError(f"split{ratios} leaves nothing to train on: the first ratio must be above 0")
    return Split((float(train), float(validation), float(test)), int(seed), by, patterns)
