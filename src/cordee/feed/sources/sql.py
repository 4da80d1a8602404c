"""Rows of a database query, by SQLAlchemy: read in the calling process, in one pass, a part at a time."""

from __future__ import annotations

import datetime
import decimal
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from cordee.core.errors import DataError
from cordee.feed.columns import TEXT, Column, Kind, Ragged, Schema
from cordee.feed.places import Place
from cordee.feed.sources.seam import Chunk, Fault, check_on_error
from cordee.feed.sources.tables import content_of
from cordee.feed.sources.types import TypePairs, with_types

ROWS = 8_192
"""Rows that are asked for at a time, and that decide the types."""

_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|--[^\n]*|/\*.*?\*/", re.DOTALL)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


@dataclass(frozen=True)
class SqlReader:
    """Reads the rows of a query, in the order that the query states."""

    query: str
    url: str = field(repr=False)
    """As SQLAlchemy takes it. It may hold a password: no message, key or manifest has it."""
    types: TypePairs = ()
    on_error: str = "stop"
    version: str = ""
    """Names the content, so that the query need not run once more to see whether its rows have changed."""
    in_process: ClassVar[bool] = True
    endings: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        """Check what was given; the database is not asked yet."""
        check_on_error(self.on_error)
        if not _ordered(self.query):
            line = self.query.strip().rstrip(";")
            raise DataError(
                "a database gives rows in any order unless the query states one, and samples are known by their place: "
                f"end it with ORDER BY and columns that no two rows share, such as\n    {line} ORDER BY id"
            )

    @property
    def key(self) -> str:
        """All that changes the rows, but for the content of the database: the place has a mark of that."""
        url = _parsed(self.url)
        name = Path(url.database or "").name
        return f"sql 1 {url.get_backend_name()} {name} {self.query} {self.types} {self.on_error}"

    @property
    def shown(self) -> str:
        """The database, without a password."""
        url = _parsed(self.url)
        return str(url.set(password=None, query={}).render_as_string())

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """One, with the mark `version`, else of SQLite's file, else of all rows: for it the query is run."""
        key = f"query-{hashlib.blake2b(self.query.encode(), digest_size=6).hexdigest()}"
        place = Place(self.shown, key, 0, "")
        return (Place(self.shown, key, 0, self.version or self._state_of_file() or content_of(self, place)),)

    def schema(self, places: Sequence[Place]) -> Schema:
        """By the first rows."""
        with self._rows() as (names, parts):
            twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
            if twice is not None:
                raise DataError(f"two columns of the query are called {twice!r}: name one by AS")
            columns = list(zip(*next(parts, ()), strict=True)) or [()] * len(names)
            found = {name: _kind_of(values) for name, values in zip(names, columns, strict=True)}
        return with_types(found, self.types)

    def chunks(self, place: Place, schema: Schema, start: int = 0) -> Iterator[Chunk]:
        """Some rows at a time; `start` is a row, and those before it are read again."""
        at = 0
        with self._rows() as (names, parts):
            for part in parts:
                at += len(part)
                if at > start:
                    yield self._chunk(dict(zip(names, zip(*part, strict=True), strict=True)), schema, at, len(part))

    def _chunk(self, values: dict[str, Any], schema: Schema, end: int, count: int) -> Chunk:
        reasons: dict[int, str] = {}
        made: dict[str, list[Any]] = {}
        for name, kind in schema.items():
            convert, made[name] = _converter(kind), []
            for row, value in enumerate(values[name]):
                try:
                    made[name].append(convert(value))
                except (TypeError, ValueError, OverflowError):
                    reasons.setdefault(row, f"column {name} is {value!r}, which is not {kind}")
                    made[name].append(None)
        faults = tuple(Fault(self.shown, end - count + row + 1, reasons[row]) for row in sorted(reasons))
        if faults and self.on_error == "stop":
            raise DataError(
                f"{faults[0]}. Say what the column is by types={{'name': 'float64'}}, change the query, or leave such "
                "rows out and count them by on_error='skip'"
            )
        if reasons:
            made = {name: [one for at, one in enumerate(column) if at not in reasons] for name, column in made.items()}
        columns = {name: _column(made[name], kind) for name, kind in schema.items()}
        return Chunk(columns, count - len(reasons), end, faults)

    @contextmanager
    def _rows(self) -> Iterator[tuple[list[str], Iterator[Sequence[Any]]]]:
        """Names of the columns, and the rows in parts; the connection is closed at the end."""
        alchemy = _sqlalchemy()
        self._check_file()
        try:
            engine = alchemy.create_engine(_parsed(self.url))
        except ImportError as error:
            driver = error.name or str(error)
            raise DataError(
                f"{self.shown} needs the driver {driver}, which is not installed: pip install {driver}"
            ) from None
        try:
            options = {"stream_results": True, "no_parameters": True, "max_row_buffer": ROWS}
            with engine.connect().execution_options(**options) as connection:
                result = connection.exec_driver_sql(self.query)
                yield list(result.keys()), result.partitions(ROWS)
        except alchemy.exc.SQLAlchemyError as error:
            reason = str(getattr(error, "orig", None) or error).splitlines()[0]
            raise DataError(f"{self.shown} did not answer the query: {self._without_secret(reason)}") from None
        finally:
            engine.dispose()

    def _file(self) -> Path | None:
        """Of a database of SQLite's."""
        url = _parsed(self.url)
        named = url.database or ""
        plain = url.get_backend_name() == "sqlite" and named not in ("", ":memory:") and not named.startswith("file:")
        return Path(named) if plain else None

    def _check_file(self) -> None:
        path = self._file()
        if path is not None and not path.is_file():  # it would be made, and be empty
            raise DataError(f"there is no database {path.absolute()}: check the path (sqlite:////absolute/path.db)")

    def _state_of_file(self) -> str:
        self._check_file()
        path = self._file()
        parts = [] if path is None else [path, path.with_name(f"{path.name}-wal")]
        states = [one.stat() for one in parts if one.is_file()]
        return " ".join(f"{one.st_mtime_ns} {one.st_size}" for one in states)

    def _without_secret(self, text: str) -> str:
        secret = _parsed(self.url).password
        return text.replace(str(secret), "***") if secret else text


def _sqlalchemy() -> Any:
    try:
        import sqlalchemy
        import sqlalchemy.exc
    except ImportError:
        raise DataError("reading databases needs SQLAlchemy, which is not here: pip install 'cordee[sql]'") from None
    return sqlalchemy


def _parsed(url: str) -> Any:
    alchemy = _sqlalchemy()
    try:
        return alchemy.make_url(url)
    except alchemy.exc.ArgumentError:
        raise DataError(
            "the URL of the database cannot be read (it is not shown here: it may hold a password): write it as "
            "SQLAlchemy takes it, such as sqlite:///data.db or postgresql://user:password@host/name"
        ) from None


def _ordered(query: str) -> bool:
    """Whether the query itself, not only a query within it, states an order."""
    text = _QUOTED.sub(" ", query)
    while (inner := re.sub(r"\([^()]*\)", " ", text)) != text:
        text = inner
    return re.search(r"\border\s+by\b", text, re.IGNORECASE) is not None


def _kind_of(values: Sequence[Any]) -> Kind:
    """What a column is, by some of its values."""
    types = {type(one) for one in values}
    missing = type(None) in types
    types -= {type(None)}
    if types and types <= {bool}:
        return Kind("float32" if missing else "bool")
    if types and types <= {bool, int}:
        return Kind("float64" if missing else "int64")
    if types <= {bool, int, float, decimal.Decimal}:
        return Kind("float64")
    if all(issubclass(one, datetime.date | datetime.time | datetime.timedelta) for one in types):
        return Kind("float64", raw="time")
    if all(issubclass(one, bytes | bytearray | memoryview) for one in types):
        return Kind("uint8", ragged=True)
    return Kind(TEXT, ragged=True)


def _converter(kind: Kind) -> Callable[[Any], Any]:
    if kind.dtype == TEXT:
        return _text
    if kind.ragged or kind.shape:
        return lambda value: b"" if value is None and kind.ragged else _entry(bytes(value), kind)
    if np.dtype(kind.dtype).kind == "f":
        return lambda value: float("nan") if value is None else _number(value)
    if kind.dtype == "bool":
        return _flag
    limits = np.iinfo(kind.dtype)
    return lambda value: _whole(value, limits.min, limits.max)


def _entry(value: bytes, kind: Kind) -> bytes:
    if kind.shape and len(value) != np.dtype(kind.dtype).itemsize * int(np.prod(kind.shape)):
        raise ValueError
    return value


def _text(value: Any) -> str | bytes:
    return "" if value is None else value if isinstance(value, str) else str(value)


def _number(value: Any) -> float:
    if isinstance(value, datetime.datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=datetime.timezone.utc)
        return (moment - _EPOCH).total_seconds()
    if isinstance(value, datetime.date):
        return float((value - _EPOCH.date()).days * 86_400)
    if isinstance(value, datetime.time):
        return value.hour * 3600 + value.minute * 60 + value.second + value.microsecond / 1e6
    return value.total_seconds() if isinstance(value, datetime.timedelta) else float(value)


def _whole(value: Any, least: int, most: int) -> int:
    whole = int(value)
    if (not isinstance(value, str) and whole != value) or not least <= whole <= most:
        raise ValueError
    return whole


def _flag(value: Any) -> bool:
    if value not in (0, 1):
        raise ValueError
    return bool(value)


def _column(values: list[Any], kind: Kind) -> Column:
    if kind.ragged:
        found = Ragged.of(values)
        return Ragged(found.offsets, found.values, text=kind.dtype == TEXT)
    if kind.shape:
        return np.frombuffer(b"".join(values), kind.dtype).reshape(len(values), *kind.shape)
    return np.asarray(values, kind.dtype)
