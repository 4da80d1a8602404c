"""The methods of a chain that add a step, by subject; each gives a new chain."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from cordee.core.errors import DataError
from cordee.feed.steps.rows import Drop, Filter, FlatMap, Map, Rename, Sample, Select
from cordee.feed.steps.seam import Fitting, Step
from cordee.feed.steps.user import check_callable

Self = TypeVar("Self", bound="Extended")  # typing has it from 3.11 on


class Extended(ABC):
    """What can be given one more step."""

    @abstractmethod
    def then(self: Self, step: Step | Fitting) -> Self:
        """The same chain with this step behind the others."""


class OnRows(Extended):
    """Steps that change, choose or multiply rows."""

    def map(self: Self, function: Callable[..., Any], *, rows: bool = False) -> Self:
        """Columns become others: `function` takes and gives a dict of columns, each an array for many rows.

        With `rows=True` it takes and gives one row as a dict, which is slower. It runs once for each row, when the
        store is built, in any process, and must depend on the row alone; random changes are `augment`'s.
        """
        return self.then(Map(check_callable("map", function, "a dict of columns"), bool(rows)))

    def filter(self: Self, function: Callable[..., Any], *, rows: bool = False) -> Self:
        """Only the rows for which `function` of a dict of columns gives true, as an array of booleans."""
        return self.then(Filter(check_callable("filter", function, "a dict of columns"), bool(rows)))

    def flat_map(self: Self, function: Callable[[dict[str, Any]], Any]) -> Self:
        """Several rows of one, or none: `function` takes a row as a dict, and gives a list of rows."""
        return self.then(FlatMap(check_callable("flat_map", function, "a row as a dict")))

    def sample(self: Self, fraction: float, replacement: bool = False, seed: int = 0) -> Self:
        """Each row with this probability; with `replacement` any number of times, `fraction` times on average."""
        most = 100.0 if replacement else 1.0
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction <= most:
            raise DataError(f"sample({fraction!r}): a number above 0, and at most {most:g}, was expected")
        return self.then(Sample(float(fraction), bool(replacement), int(seed)))

    def select(self: Self, *columns: str) -> Self:
        """Only these columns, in this order."""
        if not columns:
            raise DataError("select(): name the columns to keep, for instance select('age', 'kind')")
        return self.then(Select(columns))

    def drop(self: Self, *columns: str) -> Self:
        """All but these columns."""
        return self.then(Drop(columns))

    def rename(self: Self, **names: str) -> Self:
        """Columns by other names: `rename(old="new")`."""
        return self.then(Rename(tuple(names.items())))
