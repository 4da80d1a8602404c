"""What a user should know of data before a training, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cordee.core.words import plural
from cordee.feed.store.layout import Skipped

_FILES, _FAULTS = 5, 2
"""So many are named."""


def skipped_note(skipped: Skipped) -> tuple[str, ...]:
    """Of rows that could not be read: how many, of which files, and why the first ones."""
    if not skipped.rows:
        return ()
    ranked = sorted(skipped.files.items(), key=lambda one: -one[1])
    named = [f"{rows:,} of {name}" for name, rows in ranked[:_FILES]]
    others = skipped.rows - sum(rows for _, rows in ranked[:_FILES])
    files = ", ".join([*named, *([f"{others:,} of other files"] if named and others else [])])
    rows = f"{plural(skipped.rows, 'row')} could not be read and {'was' if skipped.rows == 1 else 'were'} left out"
    return (f"{rows}{f': {files}' if files else ''} (such as {'; '.join(skipped.faults[:_FAULTS])})",)


def numbered_note(classes: Sequence[Any]) -> tuple[str, ...]:
    """Of a label of whole numbers that became classes, which a quantity must not; class numbers already say nothing."""
    if len(classes) < 3 or list(classes) == list(range(len(classes))) or not all(type(one) is int for one in classes):
        return ()
    first, last = ", ".join(f"{one} is {at}" for at, one in enumerate(classes[:2])), len(classes) - 1
    return (
        f"the label's whole numbers became {len(classes):,} classes: {first}, ... {classes[last]} is {last}. If it is "
        "a quantity that a model is to give back, make floats of it: types={'...': 'float64'}",
    )


def lacking_note(lacking: Sequence[str]) -> tuple[str, ...]:
    """Of a store whose chain had functions for batches, such as `transform(scaled)`."""
    if not lacking:
        return ()
    return (
        f"the data's store was built of a chain with {', '.join(lacking)}, which a store does not keep: batches are as "
        f"they were before. If that is not meant, give it again: cordee.data.store(...){_chained(lacking)}",
    )


def kept_note(out: str, lacking: Sequence[str]) -> str:
    """The same when the store was built."""
    return (
        f"{out} holds rows without {', '.join(lacking)}: a store keeps no functions for batches. Give them again when "
        f"you train: cordee.data.store({out!r}){_chained(lacking)}"
    )


def _chained(lacking: Sequence[str]) -> str:
    return "".join(f".{one}" for one in lacking)
