"""Steps that make numbers of texts, and lists of one length of lists of any."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cordee.core.errors import DataError
from cordee.feed.columns import Column, Columns, Kind, Ragged, Schema
from cordee.feed.steps.base import TEXTS, Written, present
from cordee.feed.steps.seam import Rows
from cordee.feed.steps.user import Function, check_callable
from cordee.feed.steps.values import places_in

PADDING, OTHER, FIRST = 0, 1, 2
"""Token numbers: of what fills up short texts, of words that are not in the vocabulary, and of its first word."""
MOST_WORDS = 5_000_000
"""Different words of the training rows that are counted."""
_WORD = re.compile(r"\w+|[^\w\s]")


class Words(Written, frozen=True, tag="tokenize"):
    """Words become numbers, by the most frequent ones of the training rows."""

    column: str
    most: int
    length: int | None = None
    lower: bool = True

    @property
    def reads(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    @property
    def makes(self) -> tuple[str, ...]:
        """The same one."""
        return (self.column,)

    def schema(self, schema: Schema) -> Schema:
        """Token numbers, so many or any number of them."""
        return _tokens(schema, self.column, self.length)

    def of(self, columns: Columns) -> Any:
        """How often each word comes."""
        column = columns[self.column]
        assert isinstance(column, Ragged)
        return Counter(word for text in column.tolist() for word in words_in(text, self.lower))

    def merge(self, one: Any, other: Any) -> Any:
        """Of both, in the larger one: to copy the whole vocabulary for each chunk takes very long."""
        less, merged = sorted((one, other), key=len)
        merged.update(less)
        if len(merged) > MOST_WORDS:
            raise DataError(
                f"tokenize({self.column!r}): there are more than {MOST_WORDS:,} different words. Make fewer of them by "
                f"map before, or hash: tokenize({self.column!r}, by='bytes') needs no vocabulary"
            )
        return merged

    def fitted(self, statistics: Any) -> WordsOf:
        """With the most frequent words; of equally frequent ones, the first by their letters."""
        ranked = sorted(statistics.items(), key=lambda item: (-item[1], item[0]))
        if not ranked:
            raise DataError(f"tokenize({self.column!r}): there is no word in the training rows")
        return WordsOf(self.column, tuple(word for word, _ in ranked[: self.most]), self.length, self.lower)


class WordsOf(Written, frozen=True, tag="words_of"):
    """Words become their places in a vocabulary, counted from `FIRST`."""

    column: str
    vocabulary: tuple[str, ...]
    length: int | None = None
    lower: bool = True

    def schema(self, schema: Schema) -> Schema:
        """Token numbers, so many or any number of them."""
        return _tokens(schema, self.column, self.length)

    def apply(self, rows: Rows) -> Rows:
        """The same rows."""
        column = rows.columns[self.column]
        assert isinstance(column, Ragged)
        lists = [words_in(text, self.lower) for text in column.tolist()]
        flat = Ragged.of([word for words in lists for word in words])
        numbers = places_in(self.vocabulary, flat) + FIRST if len(flat) else np.zeros(0, np.int64)
        numbers[numbers < FIRST] = OTHER
        return _with_tokens(rows, self.column, _ragged([len(one) for one in lists], numbers), self.length)


class Bytes(Written, frozen=True, tag="bytes"):
    """Each byte of a text becomes its value plus one; 0 fills up short ones."""

    column: str
    length: int | None = None

    def schema(self, schema: Schema) -> Schema:
        """Token numbers, so many or any number of them."""
        return _tokens(schema, self.column, self.length)

    def apply(self, rows: Rows) -> Rows:
        """The same rows."""
        column = rows.columns[self.column]
        assert isinstance(column, Ragged)
        tokens = Ragged(column.offsets, column.values.astype(np.int64) + 1)
        return _with_tokens(rows, self.column, tokens, self.length)


class Tokenized(Written, frozen=True, tag="tokenized"):
    """Texts become numbers by a tokenizer of the user's, which takes a list of texts."""

    column: str
    function: Function
    length: int | None = None

    def schema(self, schema: Schema) -> Schema:
        """Token numbers, so many or any number of them."""
        return _tokens(schema, self.column, self.length)

    def apply(self, rows: Rows) -> Rows:
        """The same rows."""
        column = rows.columns[self.column]
        assert isinstance(column, Ragged)
        called = f"tokenize({self.column!r})"
        made = self.function.run(called, column.tolist()) if len(column) else []
        lists: Any = made
        if isinstance(made, Mapping) or hasattr(made, "input_ids"):
            lists = made["input_ids"] if isinstance(made, Mapping) else made.input_ids
        if not isinstance(lists, Iterable) or len(lists := list(lists)) != len(column):
            raise DataError(
                f"{called}: the tokenizer gave {type(made).__name__} for {len(column)} texts; a list with the tokens "
                "of each was expected, or a dict with them as input_ids"
            )
        try:
            tokens = [np.asarray(one, dtype=np.int64).reshape(-1) for one in lists]
        except (TypeError, ValueError) as error:
            raise DataError(f"{called}: the tokenizer gave tokens that are no whole numbers ({error})") from error
        flat = np.concatenate([np.zeros(0, np.int64), *tokens])
        return _with_tokens(rows, self.column, _ragged([len(one) for one in tokens], flat), self.length)


class Pad(Written, frozen=True, tag="pad"):
    """Lists of any length become lists of one: cut, or filled up."""

    column: str
    length: int
    value: float = 0

    def schema(self, schema: Schema) -> Schema:
        """So many numbers."""
        kind = present("pad", schema, self.column)
        if not kind.ragged or kind == TEXTS:
            raise DataError(
                f"pad({self.column!r}): the column holds {kind}; lists of numbers of any length were expected"
                + ("; tokenize makes them of texts" if kind == TEXTS else "")
            )
        return schema | {self.column: Kind(kind.dtype, (self.length,))}

    def apply(self, rows: Rows) -> Rows:
        """The same rows."""
        column = rows.columns[self.column]
        assert isinstance(column, Ragged)
        return replace(rows, columns=rows.columns | {self.column: padded(column, self.length, self.value)})


def make_tokenize(column: str, vocabulary: Any, length: int | None, by: str, lower: bool) -> Any:
    """The step of what a user gave."""
    if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
        raise DataError(f"tokenize({column!r}, length={length!r}): a whole number of at least 1 was expected")
    if by not in ("words", "bytes"):
        raise DataError(f"tokenize({column!r}, by={by!r}): 'words' or 'bytes' was expected")
    if by == "bytes":
        return Bytes(column, length)
    if callable(vocabulary):
        return Tokenized(column, check_callable("tokenize", vocabulary, "a list of texts"), length)
    if isinstance(vocabulary, int) and not isinstance(vocabulary, bool) and vocabulary > 0:
        return Words(column, vocabulary, length, lower)
    listed = isinstance(vocabulary, Sequence) and not isinstance(vocabulary, str) and len(vocabulary)
    if listed and all(isinstance(word, str) for word in vocabulary):
        return WordsOf(column, tuple(vocabulary), length, lower)
    raise DataError(
        f"tokenize({column!r}, vocabulary={vocabulary!r}): expected how many words to keep, a list of words, or a "
        "tokenizer: a function from a list of texts to lists of whole numbers"
    )


def words_in(text: str, lower: bool) -> list[str]:
    """Its words and signs."""
    return _WORD.findall(text.lower() if lower else text)


def padded(column: Ragged, length: int, value: float = PADDING) -> Column:
    """Of shape (rows, length): entries cut, or filled up with `value`."""
    lengths = np.minimum(np.diff(column.offsets), length)
    made = np.full((len(column), length), value, column.values.dtype)
    filled = np.arange(length) < lengths[:, None]
    starts = np.repeat(column.offsets[:-1], lengths)
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    made[filled] = column.values[starts + within]
    return made


def _ragged(lengths: Sequence[int], values: Any) -> Ragged:
    return Ragged(np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)]), values)


def _tokens(schema: Schema, column: str, length: int | None) -> Schema:
    kind = present("tokenize", schema, column)
    if kind != TEXTS:
        raise DataError(f"tokenize({column!r}): the column holds {kind}; texts were expected")
    made = Kind("int64", ragged=True) if length is None else Kind("int64", (length,))
    return schema | {column: made}


def _with_tokens(rows: Rows, name: str, tokens: Ragged, length: int | None) -> Rows:
    column = tokens if length is None else padded(tokens, length)
    return replace(rows, columns=rows.columns | {name: column})
