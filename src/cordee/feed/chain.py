"""A chain: raw files, and the steps that make training data of them, as one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cordee.core.errors import DataError
from cordee.feed.arrays import ArraySource
from cordee.feed.columns import Ragged, Schema
from cordee.feed.data import Data, MakesData
from cordee.feed.places import Place
from cordee.feed.sources.seam import Reader
from cordee.feed.steps.fit import Steps, applied, fit, schema_of
from cordee.feed.steps.inprocess import first_rows, joined_rows, raw_rows, statistics_of
from cordee.feed.steps.methods import OnColumns, OnRows
from cordee.feed.steps.pack import Finish
from cordee.feed.steps.rows import chosen_rows
from cordee.feed.steps.seam import Fitting, Rows, Step
from cordee.feed.steps.split import NAMES, Split, make_split


@dataclass(frozen=True)
class Chain(MakesData, OnRows, OnColumns):
    """Raw data and what is done to it; every method gives a new chain, and nothing is read before it is needed."""

    reader: Reader
    what: Any
    """Paths, patterns or URLs; of a reader whose rows lie in this process, its places."""
    steps: Steps = ()
    label: str | Sequence[str] | None = None
    """The column, or columns, that a model is to predict."""
    parts: Split = field(default_factory=Split)

    def then(self, step: Step | Fitting) -> Chain:
        """The same chain with this step behind the others."""
        return replace(self, steps=(*self.steps, step))

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns that a model is to predict."""
        return () if self.label is None else (self.label,) if isinstance(self.label, str) else tuple(self.label)

    def split(
        self, train: float = 0.8, validation: float = 0.1, test: float = 0.1, *, seed: int = 0, by: Any = "row"
    ) -> Chain:
        """Deal the rows to sets: `by="row"` each by itself, `"path"` whole files, or a column: equal values together.

        A row's set depends on seed, file and place in the file alone, so appended rows or files leave the others where
        they are. `by=("path", {"validation": "val/*"})` goes by names of files. Statistics of all steps, also of those
        before this one, are of the training set alone.
        """
        return replace(self, parts=make_split(train, validation, test, seed, by))

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The files."""
        if isinstance(self.what, tuple) and all(isinstance(one, Place) for one in self.what):
            return self.what
        path = Path(self.what).absolute()
        if not path.is_file():
            raise DataError(f"{path} is not there: check the path")
        found = path.stat()
        return (Place(str(path), path.name, found.st_size, str(found.st_mtime_ns)),)

    @cached_property
    def raw(self) -> Schema:
        """The columns of the files."""
        return self.reader.schema(self.places)

    def data(self) -> Data:
        """The sets, ready for training."""
        self.parts.check(self.raw)
        steps = fit(
            (*self.steps, Finish(self.labels)),
            self.raw,
            lambda count: first_rows(self._raw_rows(), self.raw, count),
            lambda before, fittings: statistics_of(self._raw_rows(), before, fittings),
        )
        rows = joined_rows([applied(steps, one) for one in self._raw_rows()], schema_of(steps, self.raw))
        return Data(**{name: _source(chosen_rows(rows, rows.sets == NAMES[name])) for name in self.parts.used})

    def _raw_rows(self) -> Any:
        return raw_rows(self.reader, self.places, self.raw, self.parts)


def _source(rows: Rows) -> ArraySource:
    arrays = {name: column for name, column in rows.columns.items() if not isinstance(column, Ragged)}
    return ArraySource(arrays)
