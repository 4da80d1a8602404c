"""What rows take with them from one store to the next, where a chain was cut: their origins and sets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cordee.feed.columns import Kind, Schema
from cordee.feed.steps.base import Written
from cordee.feed.steps.seam import Rows
from cordee.feed.steps.split import GIVEN

ORIGIN = "*origin"
"""The column with them, which is there between two stores alone."""


class Leave(Written, frozen=True, tag="leave"):
    """The last step before a cut: origins become a column."""

    def schema(self, schema: Schema) -> Schema:
        """One column more."""
        return schema | {ORIGIN: Kind("int64")}

    def apply(self, rows: Rows) -> Rows:
        """The same rows."""
        return replace(rows, columns={**rows.columns, ORIGIN: rows.origins.view(np.int64)})


class Enter(Written, frozen=True, tag="enter"):
    """The first step after a cut: origins are those that rows had before it."""

    def schema(self, schema: Schema) -> Schema:
        """Without what was carried."""
        return {name: kind for name, kind in schema.items() if name not in (ORIGIN, GIVEN)}

    def apply(self, rows: Rows) -> Rows:
        """The same rows."""
        columns = dict(rows.columns)
        origins = np.ascontiguousarray(columns.pop(ORIGIN), dtype=np.int64).view(np.uint64)
        columns.pop(GIVEN, None)
        return replace(rows, columns=columns, origins=origins)
