"""The methods of a chain that add a step, by subject; each gives a new chain."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from cordee.core.errors import DataError
from cordee.feed.steps.categories import MOST_CATEGORIES, MOST_CLASSES, Classes, OneHot, make_hash
from cordee.feed.steps.numbers import STATISTICS, Fill, Filled, Scale, Standardize
from cordee.feed.steps.pack import Pack
from cordee.feed.steps.rows import Drop, Filter, FlatMap, Map, Rename, Sample, Select
from cordee.feed.steps.seam import Fitting, Step
from cordee.feed.steps.user import check_callable
from cordee.feed.steps.words import Pad, make_tokenize

Self = TypeVar("Self", bound="Extended")  # typing has it from 3.11 on


class Extended(ABC):
    """What can be given one more step."""

    @abstractmethod
    def then(self: Self, step: Step | Fitting) -> Self:
        """The same chain with this step behind the others."""

    @property
    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """The columns that a model is to predict: steps without named columns leave them alone."""

    @property
    @abstractmethod
    def divided(self) -> bool:
        """Whether rows are dealt to several sets already."""


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
        """Each row with this probability; with `replacement` any number of times, `fraction` times on average.

        Behind `split`, rows of the training set alone: validation and test stay whole. Before it, rows of all sets; but
        with `replacement`, too, those of validation and test come once.
        """
        most = 100.0 if replacement else 1.0
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction <= most:
            raise DataError(f"sample({fraction!r}): a number above 0, and at most {most:g}, was expected")
        return self.then(Sample(float(fraction), bool(replacement), int(seed), self.divided))

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


class OnColumns(Extended):
    """Steps that make numbers of columns, many of them by what the rows of the training set show.

    Without names they are for all columns that they fit, but not for the label.
    """

    def fill(self: Self, value: float | str = "mean", *columns: str) -> Self:
        """Missing values become `value`, or the `"mean"` or `"median"` of the training rows.

        A text other than these two fills texts. Default: all columns of single floats, or of texts.
        """
        if isinstance(value, str) and value in STATISTICS:
            return self.then(Fill(columns, self.labels, value))
        if isinstance(value, bool) or not isinstance(value, int | float | str) or value != value:
            raise DataError(f"fill({value!r}): a number, a text, 'mean' or 'median' was expected")
        return self.then(Filled(columns, (value,), self.labels))

    def standardize(self: Self, *columns: str) -> Self:
        """Mean 0 and standard deviation 1 over the training rows, as float32; a constant column becomes 0."""
        return self.then(Standardize(columns, self.labels))

    def scale(self: Self, *columns: str) -> Self:
        """From 0, the least value of the training rows, to 1, the largest, as float32; a constant column becomes 0."""
        return self.then(Scale(columns, self.labels))

    def one_hot(self: Self, *columns: str, limit: int = MOST_CATEGORIES) -> Self:
        """Each category of the training rows as a number, 1 where it is the row's; default: all columns of texts.

        A row of another category, or of none, has zeros alone.
        """
        return self.then(OneHot(columns, self.labels, limit))

    def hash(self: Self, column: str, size: int, *, seed: int = 0, places: bool = False) -> Self:
        """Feature hashing: `size` numbers, 1 or -1 at the place that the value's hash gives; of lists the sum.

        Nothing is fitted, so any number of categories will do. With `places` the place alone, for an embedding.
        """
        return self.then(make_hash(column, size, seed, places))

    def tokenize(
        self: Self,
        column: str,
        vocabulary: int | Sequence[str] | Callable[[list[str]], Any] = 10_000,
        length: int | None = None,
        *,
        by: str = "words",
        lower: bool = True,
    ) -> Self:
        """Texts become token numbers: 0 fills up to `length`, 1 is a word out of the vocabulary.

        `vocabulary`: how many of the most frequent words of the training rows, or a list of words, or a tokenizer such
        as those of Hugging Face. `by="bytes"` needs none: a token is a byte plus 1.
        """
        return self.then(make_tokenize(column, vocabulary, length, by, lower))

    def pad(self: Self, column: str, length: int, value: float = 0) -> Self:
        """Lists of any length become lists of one: cut, or filled up with `value`."""
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise DataError(f"pad({column!r}, {length!r}): a whole number of at least 1 was expected")
        return self.then(Pad(column, length, value))

    def classes(self: Self, *columns: str, limit: int = MOST_CLASSES) -> Self:
        """Texts or numbers become class numbers from 0, in the order of the training rows' values."""
        if not columns:
            raise DataError("classes(): name the columns, for instance classes('kind')")
        return self.then(Classes(columns, (), limit))

    def pack(self: Self, name: str, columns: Sequence[str] = ()) -> Self:
        """Columns side by side in one, as float32; default: all of numbers but label, x and images."""
        if isinstance(columns, str):
            raise DataError(f"pack({name!r}, {columns!r}): a list of columns was expected, [{columns!r}]")
        return self.then(Pack(name, tuple(columns), self.labels))
