"""A chain: raw files, and the steps that make training data of them, as one value."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import structs

from cordee.core.errors import DataError
from cordee.core.text import plain
from cordee.core.words import plural
from cordee.feed.batch import Batch
from cordee.feed.columns import Schema
from cordee.feed.data import Data, MakesData
from cordee.feed.features import features_of
from cordee.feed.late import Late
from cordee.feed.making import Making
from cordee.feed.notes import kept_note, skipped_note
from cordee.feed.places import Place, resolve
from cordee.feed.source import Fields, Source
from cordee.feed.sources.seam import OwnPlaces, Reader
from cordee.feed.sources.stored import Stored, first_of, places_in
from cordee.feed.steps.base import shown
from cordee.feed.steps.carried import Enter, Leave
from cordee.feed.steps.fit import Steps
from cordee.feed.steps.methods import OnColumns, OnRows
from cordee.feed.steps.pack import Finish
from cordee.feed.steps.seam import Fitting, Step
from cordee.feed.steps.split import GIVEN, Split, make_split
from cordee.feed.store.layout import NO_ROWS, Features
from cordee.feed.store.opened import Store, StoreSource
from cordee.feed.view import View, Viewed, batches_of, in_view, rows_of_set


@dataclass(frozen=True)
class Chain(MakesData, OnRows, OnColumns, Viewed):
    """Raw data and what is done to it; every method gives a new chain, and nothing is read before it is needed.

    `Job(data=chain)` trains on it: a store of the rows behind all steps is built once into a cache. A chain can be gone
    through by itself, too: `for row in chain`, `for batch in chain.shuffle(0).batch(128)`; of one that is split, the
    training set.
    """

    reader: Reader
    what: Any
    """Paths, patterns, folders or URLs; places; None where the reader knows its own; or the chain that it goes on."""
    steps: Steps = ()
    label: str | Sequence[str] | None = None
    """The column, or columns, that a model is to predict."""
    parts: Split = field(default_factory=Split)
    late: tuple[Late, ...] = ()
    view: View = field(default_factory=View)

    # ------------------------------------------------------------- other chains

    def then(self, step: Step | Fitting) -> Chain:
        """The same chain with this step behind the others."""
        if self.view.batch is not None or self.view.seed is not None:
            raise DataError(
                f"{getattr(step, 'called', type(step).__name__)}: batch and shuffle come last, behind all steps; steps "
                "take many rows at once anyway"
            )
        if self.view.cuts:
            return replace(self._cut(), steps=(step,))
        return replace(self, steps=(*self.steps, step))

    def labelled(self, *columns: str) -> Chain:
        """With this column, or these, as what a model is to predict."""
        return replace(self, label=columns or None)

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns that a model is to predict."""
        return () if self.label is None else (self.label,) if isinstance(self.label, str) else tuple(self.label)

    @property
    def divided(self) -> bool:
        """Whether rows are dealt to several sets already."""
        return len(self._used) > 1

    def split(
        self, train: float = 0.8, validation: float = 0.1, test: float = 0.1, *, seed: int = 0, by: Any = "row"
    ) -> Chain:
        """Deal the rows to sets: `by="row"` each by itself, `"path"` whole files, or a column: equal values together.

        A row's set depends on seed, file and place in the file alone, so appended rows or files leave the others where
        they are. `by=("path", {"validation": "val/*"})` goes by names of files. Statistics of all steps, also of those
        before this one, are of the training set alone.
        """
        parts = make_split(train, validation, test, seed, by)
        if not isinstance(self.what, Chain):
            return replace(self, parts=parts)
        if parts.by in ("row", "path") or parts.by in self.what.columns:
            return replace(self, what=self.what.split(train, validation, test, seed=seed, by=by))
        fitted = [one for one in self.what.steps if isinstance(one, Fitting)]
        if fitted or self.what.parts != Split():
            named = getattr(fitted[0], "called", "") if fitted else "split"
            raise DataError(
                f"split(by={parts.by!r}) goes by a column that a step makes, but {named} comes before: what it does "
                "depends on which rows are training rows. Put it behind the split"
            )
        return replace(self, parts=parts)

    def transform(self, function: Callable[[Batch], Fields]) -> Chain:
        """Change batches of all sets on their device, after the copy there; see `Data.transform`."""
        return replace(self, late=(*self.late, Late(function)))

    def augment(self, function: Callable[[Batch], Fields]) -> Chain:
        """Change batches of the training on their device, by `cordee.data.draws`; see `Data.augment`."""
        return replace(self, late=(*self.late, Late(function, augments=True)))

    def viewed(self, view: View) -> Chain:
        """The same rows in another view."""
        return replace(self, view=view)

    def _cut(self) -> Chain:
        """A chain that goes on from a store of the rows here."""
        return Chain(Stored(), replace(self, late=()), (), self.label, Split(by=GIVEN), self.late)

    # ------------------------------------------------------------- what it reads

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The files."""
        if isinstance(self.what, Chain):
            return places_in(self._lower, self.what.view.most, self.what.view.times)
        if self.what is None and isinstance(self.reader, OwnPlaces):
            return self.reader.places
        return resolve(self.what, self.reader.endings)

    @cached_property
    def _lower(self) -> Store:
        """The store that a chain behind a cut goes on from."""
        return self.what._making((Leave(),)).store()  # type: ignore[no-any-return]

    @cached_property
    def raw(self) -> Schema:
        """The columns of the files."""
        return self._making(()).raw

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of columns as they are in the files, before any step."""
        return self.what.columns if isinstance(self.what, Chain) else tuple(self.raw)

    def fitted_steps(self) -> tuple[Step, ...]:
        """The steps with what was found in the training rows."""
        return self._making(()).fitted

    # ------------------------------------------------------------- what comes out

    def data(self) -> Data:
        """The sets, ready for training: x, y and other fields, from a store in the cache."""
        making = self._making((Finish(self.labels),))
        store = making.store()
        data = Data(**self._sets(store), features=self._features(making), skipped=store.manifest.left_out)
        for late in self.late:
            data = data.augment(late.function) if late.augments else data.transform(late.function)
        return data

    def build(self, out: str | Path, *, processes: int | None = None, replace: bool = True) -> Path:
        """Write the store that a training reads to a folder of its own; another store there is replaced.

        Functions of `transform` and `augment` are not kept: give them again, `cordee.data.store(out).transform(f)`.
        """
        chain = self._cut() if self.view.most is not None or self.view.times > 1 else self
        making = chain._making((Finish(self.labels),))
        lacking = tuple(late.shown for late in self.late)
        making.build(Path(out), structs.replace(chain._features(making), lacking=lacking), processes, replace)
        if lacking:
            print(plain(f"cordee: {kept_note(str(out), lacking)}"), file=sys.stderr, flush=True)  # noqa: T201
        return Path(out)

    def show(self, rows: int = 5) -> None:
        """Print columns, numbers of rows, and the first rows."""
        store = self._making(()).store()
        counts = ", ".join(f"{name} {plural(len(one), 'row')}" for name, one in store.sets.items())
        lines = [shown(store.manifest.schema), counts, *skipped_note(store.manifest.left_out)]
        for number, row in enumerate(self):
            if number == rows:
                break
            lines.append(", ".join(f"{name}={_short(value)}" for name, value in row.items()))
        print("\n".join(lines))  # noqa: T201

    def __iter__(self) -> Iterator[Any]:
        """Rows as dicts, or the batches that `batch` asked for; of the training set."""
        if self.view.batch is not None:
            train = self.data().train
            nbytes = train.traits.table.nbytes if train.traits.table is not None else 0
            yield from batches_of(train, self.view, self.view.batch, nbytes)
            return
        store = self._making(()).store()
        source = self._set(store, "train")
        yield from rows_of_set(source, self.view, self._counts(store)["train"], self.view.times)

    def _making(self, ending: Steps) -> Making:
        beginning = (Enter(),) if isinstance(self.what, Chain) else ()
        earlier = self._lower.manifest.left_out if isinstance(self.what, Chain) else NO_ROWS
        return Making(self.reader, self.places, (*beginning, *self.steps, *ending), self.parts, earlier)

    def _features(self, making: Making) -> Features:
        """What a model that is trained on the rows needs, to predict on others."""
        bottom, before = self._below
        return features_of(bottom.reader, bottom.raw, self.labels, (*before, *making.fitted))

    @property
    def _below(self) -> tuple[Chain, tuple[Step, ...]]:
        """The chain that reads the files, and the steps up to here."""
        if not isinstance(self.what, Chain):
            return self, ()
        bottom, before = self.what._below
        return bottom, (*before, *self.what.fitted_steps())

    @property
    def _used(self) -> tuple[str, ...]:
        """Which sets there should be."""
        return self.what._used if self.parts.by == GIVEN and isinstance(self.what, Chain) else self.parts.used

    def _counts(self, store: Store) -> dict[str, int]:
        return first_of({name: len(source) for name, source in store.sets.items()}, self.view.most)

    def _set(self, store: Store, name: str) -> StoreSource:
        if name not in store.sets:
            total = sum(len(one) for one in store.sets.values())
            whole = {"row": "", "path": " (by='path' deals whole files)", GIVEN: ""}
            keys = whole.get(self.parts.by, f" (all rows with one value of {self.parts.by!r} go to one set)")
            raise DataError(
                f"split left no row for {name}, of {plural(total, 'row')} in all{keys}: choose another seed, a larger "
                "ratio, or more data"
            )
        return store.sets[name]

    def _sets(self, store: Store) -> dict[str, Source]:
        counts = self._counts(store)
        sets = {name: self._set(store, name) for name in self._used}
        return {
            name: in_view(one, counts[name], self.view.times if name == "train" else 1) for name, one in sets.items()
        }


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 40 else f"{text[:37]}..."
