"""Tables as chains: `csv`, `parquet`, `table` and `sql`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cordee.core.errors import DataError
from cordee.feed.chain import Chain
from cordee.feed.places import What
from cordee.feed.sources.csv import MISSING, CsvReader
from cordee.feed.sources.csvfile import Dialect
from cordee.feed.sources.parquet import ParquetReader
from cordee.feed.sources.sql import SqlReader
from cordee.feed.sources.tables import TableReader, table_of
from cordee.feed.sources.types import Types, type_pairs

Label = str | Sequence[str] | None
"""The column, or columns, that a model is to predict."""


def csv(
    what: What,
    *,
    label: Label = None,
    names: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    types: Types = None,
    missing: Sequence[str] = MISSING,
    on_error: str = "stop",
    dialect: Dialect | str | None = None,
) -> Chain:
    """CSV files (`.csv`, `.tsv`, also `.gz`, `.bz2`, `.zst`): a path, URL, pattern, folder, or a list of these.

    The first row names the columns, unless `names` does. Types are those that the first MiB of every file looks like;
    `types={"age": "float32", "zip": "text"}` overrules that. `missing` lists what stands for a missing value: NaN in
    numbers, empty in texts. `on_error="skip"` leaves out rows that do not fit, and counts them. `dialect` is the
    separator, or a `Dialect`.
    """
    form = Dialect(separator=dialect) if isinstance(dialect, str) else dialect or Dialect()
    own = tuple(_listed("names", names))
    reader = CsvReader(
        own, type_pairs(types), tuple(_listed("columns", columns)), tuple(_listed("missing", missing)), on_error, form
    )
    return Chain(reader, what, label=label)


def parquet(
    what: What,
    *,
    label: Label = None,
    columns: Sequence[str] | None = None,
    types: Types = None,
    on_error: str = "stop",
) -> Chain:
    """Parquet files: a path, URL, pattern, folder, or a list of these; only `columns` are read, if they are given.

    Lists of fixed size are arrays of that shape, others have any length (`types={"image": "uint8 (28, 28)"}` says
    otherwise). Dates and timestamps are seconds since 1970 (UTC), decimals float64, whole numbers with missing values
    floats. Folders such as `year=2024/` below what is named are columns too.
    """
    reader = ParquetReader(tuple(_listed("columns", columns)), type_pairs(types), on_error)
    return Chain(reader, what, label=label)


def table(
    given: Any,
    *,
    label: Label = None,
    columns: Sequence[str] | None = None,
    types: Types = None,
    on_error: str = "stop",
) -> Chain:
    """A table in memory: a frame of pandas, a table of Arrow, a `Dataset` of Hugging Face, or a dict of arrays.

    The index of a frame is left out: make it a column by `frame.reset_index()` if it matters.
    """
    reader = TableReader(table_of(given), tuple(_listed("columns", columns)), type_pairs(types), on_error)
    return Chain(reader, None, label=label)


def sql(
    query: str,
    url: str,
    *,
    label: Label = None,
    types: Types = None,
    on_error: str = "stop",
    version: str = "",
) -> Chain:
    """The rows of a database query, which must state their order (ORDER BY); `url` as SQLAlchemy takes it.

    No message and no file has the password of the URL. `version` names the content of the database: as long as it stays
    the same, what was read is used again without asking. Without it, the query is run once more to see whether its rows
    have changed (of SQLite, the file is looked at).
    """
    return Chain(SqlReader(query, url, type_pairs(types), on_error, version), None, label=label)


def _listed(argument: str, given: Sequence[str] | None) -> list[str]:
    """A list of texts; one text alone is a mistake that would become its letters."""
    if given is None:
        return []
    if isinstance(given, str) or not all(isinstance(one, str) for one in given):
        raise DataError(f"{argument}={given!r} is not a list of texts: write {argument}=['a', 'b']")
    return list(given)
