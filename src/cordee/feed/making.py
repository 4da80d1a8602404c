"""From raw files to a store, through the steps of a chain: fitted once, built once, both kept in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cordee.core.errors import DataError
from cordee.feed.columns import Schema
from cordee.feed.places import Place
from cordee.feed.sources.seam import Reader
from cordee.feed.steps.fit import LOOK, Steps, fit
from cordee.feed.steps.inprocess import blocks_of, raw_rows
from cordee.feed.steps.remembered import remembered, remembered_schema
from cordee.feed.steps.seam import Fitting, Rows, Step
from cordee.feed.steps.split import Split
from cordee.feed.store.aggregate import aggregate
from cordee.feed.store.build import build
from cordee.feed.store.cached import Say, cached_store
from cordee.feed.store.layout import NO_ROWS, Features, Skipped
from cordee.feed.store.opened import Store
from cordee.feed.store.recipe import Recipe


@dataclass(frozen=True)
class Making:
    """All that decides which rows there are: files, their reader, steps that may still be fitted, and the split."""

    reader: Reader
    places: tuple[Place, ...]
    steps: Steps
    split: Split
    earlier: Skipped = NO_ROWS
    """What could not be read before a cut."""

    @cached_property
    def raw(self) -> Schema:
        """The columns of the files."""
        schema = self._looked() if self.reader.in_process else remembered_schema(self._parts, self._looked)
        self.split.check(schema)
        return schema

    @cached_property
    def fitted(self) -> tuple[Step, ...]:
        """The steps as they are applied."""
        return remembered([self.split.key, *self._parts], self.steps, self._fit)

    @property
    def recipe(self) -> Recipe:
        """For a store of all rows behind the last step."""
        return self._recipe(self.fitted)

    def store(self) -> Store:
        """In the cache."""
        return cached_store(self.recipe)

    def build(self, out: Path, features: Features, processes: int | None, anew: bool) -> None:
        """In a folder of the user's, with what those need who train from it."""
        recipe = replace(self.recipe, features=features)
        build(recipe, out, processes=processes, tell=Say(f"building the store {out}"), replace=anew)

    @cached_property
    def _parts(self) -> list[str]:
        """What stands for the rows of the files as they are now."""
        return [self.reader.key, *(place.stamp for place in self.places)]

    def _looked(self) -> Schema:
        return self.reader.schema(self.places)

    def _fit(self) -> tuple[Step, ...]:
        return fit(self.steps, self.raw, self._blocks, self._gather)

    def _blocks(self) -> Iterator[Rows]:
        return blocks_of(raw_rows(self.reader, self.places, self.raw, self.split), self.raw, LOOK)

    def _gather(self, before: tuple[Step, ...], fittings: tuple[Fitting, ...]) -> list[Any]:
        names = ", ".join(str(getattr(one, "called", type(one).__name__)) for one in fittings)
        return aggregate(self._recipe(before), fittings, tell=Say(f"looking through the training rows for {names}"))

    def _recipe(self, steps: tuple[Step, ...]) -> Recipe:
        if not self.places:
            raise DataError("there are no files to read: check the path, and what the names of the files end with")
        return Recipe(self.reader, self.places, steps, self.split, earlier=self.earlier)
