"""What a column of texts may have been meant to be: numbers with a decimal comma, dates, a mark for what is missing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from cordee.feed.columns import Column, Ragged

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_DATES = "dialect=cordee.data.Dialect(dates=({form!r},), ...)"
_FORMS = (
    (re.compile(r"[-+]?\d+(,\d+)?"), "numbers with a decimal comma", "dialect=cordee.data.Dialect(decimal=',', ...)"),
    (
        re.compile(r"[-+]?\d{1,3}([,' ]\d{3})*(\.\d+)?"),
        "numbers whose thousands are set apart",
        "map takes what is between them away",
    ),
    (re.compile(r"\d{1,2}\.\d{1,2}\.\d{4}"), "dates", _DATES.format(form="%d.%m.%Y")),
    (re.compile(r"\d{1,2}/\d{1,2}/\d{4}"), "dates", _DATES.format(form="%d/%m/%Y") + ", or '%m/%d/%Y' in it"),
)
_MOST = 0.8
"""Of the values: then the others are taken for marks of what is missing."""


def hint(names: Iterable[str], columns: Mapping[str, Column]) -> str:
    """A sentence about the first of these columns that looks like more than texts; empty if none does."""
    for name in names:
        column = columns.get(name)
        texts = column.tolist() if isinstance(column, Ragged) and column.text else []
        if found := looks_like([one.strip() for one in texts if one.strip()]):
            return f". {name!r} {found}"
    return ""


def looks_like(texts: Sequence[str]) -> str:
    """What such values look like, and which argument of `cordee.data.csv` reads them as that."""
    if not texts:
        return ""
    odd = next((one for one in texts if not _NUMBER.fullmatch(one)), None)
    if odd is None:
        return "holds numbers in its first rows and texts in others; types={...: 'float64'} names one of these"
    for form, what, argument in _FORMS:
        if all(form.fullmatch(one) for one in texts):
            return f"looks like {what}, such as {odd!r}: {argument}"
    if sum(bool(_NUMBER.fullmatch(one)) for one in texts) >= _MOST * len(texts):
        return f"holds numbers, but also {odd!r}: if that means missing, missing=('', {odd!r})"
    return ""
