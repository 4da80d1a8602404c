"""Long series made short while they come in: neighbouring rows are put together, and every number stays in some row."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

from cordee.watch.summary import Curve

Cells = dict[Any, list[float]]
"""What a row has gathered, by name."""


class Row:
    """What some consecutive steps have in common."""

    __slots__ = ("cells", "count", "redone", "seconds", "section", "step")

    def __init__(self, section: int) -> None:
        """Nothing in it yet."""
        self.section = section
        self.step = 0
        """The last step in it."""
        self.seconds = 0.0
        """When that step was."""
        self.count = 0
        self.redone = False
        """Whether its steps were done again after a resume."""
        self.cells: Cells = {}

    def note(self, name: Hashable, value: float | None) -> None:
        """One value, of which the number, the sum, the least and the greatest are kept; None is no value."""
        if value is None:
            return
        cell = self.cells.get(name)
        if cell is None:
            self.cells[name] = [1.0, value, value, value]
            return
        cell[0] += 1.0
        cell[1] += value
        if value < cell[2]:
            cell[2] = value
        if value > cell[3]:
            cell[3] = value

    def sum_up(self, name: Hashable, sums: Sequence[float], count: int = 1) -> None:
        """Sums over `count` steps; they are kept behind the number of steps."""
        cell = self.cells.get(name)
        if cell is None:
            self.cells[name] = [count, *sums]
            return
        cell[0] += count
        for place, value in enumerate(sums, start=1):
            cell[place] += value


class Thinner:
    """At most `most` rows of however many steps, in the order in which they came.

    When it is full, neighbours are put together in pairs, and from then on a row takes twice as many steps.
    """

    def __init__(self, most: int, *, sums: bool = False) -> None:
        """`sums`: the cells are made by `Row.sum_up`; otherwise by `Row.note`."""
        assert most >= 4
        self.rows: list[Row] = []
        self._most = most
        self._sums = sums
        self._width = 1
        self._section = 0

    def room(self) -> int:
        """How many steps the next `row` may stand for."""
        last = self.rows[-1] if self.rows else None
        open_ = last is not None and last.count < self._width and last.section == self._section
        return self._width - last.count if last is not None and open_ else self._width

    def row(self, step: int, seconds: float, count: int = 1) -> Row:
        """The row that takes the values of this step, or of `count` steps that end with it."""
        last = self.rows[-1] if self.rows else None
        if last is None or last.count >= self._width or last.section != self._section:
            if len(self.rows) >= self._most:
                self._halve()
                return self.row(step, seconds, count)
            last = Row(self._section)
            self.rows.append(last)
        last.count += count
        last.step = step
        last.seconds = seconds
        return last

    def go_on_after(self, step: int) -> None:
        """A new section of the run begins: rows beyond `step` will be done again, and no row spans both."""
        self.cut()
        for row in self.rows:
            if row.step > step:
                row.redone = True

    def cut(self) -> None:
        """What comes from here on is of another kind than what came before: no row spans both."""
        self._section += 1

    def _halve(self) -> None:
        """Put neighbours together; rows of two sections stay apart, unless there are too many sections to keep."""
        self._width *= 2
        apart = len({row.section for row in self.rows}) <= self._most // 2
        kept: list[Row] = []
        for row in self.rows:
            last = kept[-1] if kept else None
            fits = last is not None and last.count + row.count <= self._width
            if last is not None and fits and (not apart or last.section == row.section):
                self._join(last, row)
            else:
                kept.append(row)
        self.rows = kept

    def _join(self, row: Row, other: Row) -> None:
        row.step, row.seconds, row.section = other.step, other.seconds, other.section
        row.count += other.count
        row.redone = row.redone and other.redone
        for name, cell in other.cells.items():
            mine = row.cells.get(name)
            if mine is None:
                row.cells[name] = cell
            elif self._sums:
                row.cells[name] = [one + two for one, two in zip(mine, cell, strict=True)]
            else:
                row.cells[name] = [
                    mine[0] + cell[0],
                    mine[1] + cell[1],
                    min(mine[2], cell[2]),
                    max(mine[3], cell[3]),
                ]


def column(rows: Sequence[Row], name: Hashable, what: str) -> tuple[float | None, ...]:
    """The `mean`, `low`, `high` or `sum` of one name, a value a row; None where a row has none."""
    pick: Any = {
        "mean": lambda cell: cell[1] / cell[0],
        "sum": lambda cell: cell[1],
        "low": lambda cell: cell[2],
        "high": lambda cell: cell[3],
    }[what]
    return tuple(None if (cell := row.cells.get(name)) is None else pick(cell) for row in rows)


def curve(rows: Sequence[Row], /, **columns: tuple[str, str]) -> Curve:
    """The rows as a curve with these columns, each a name and what to take of it."""
    return Curve(
        step=tuple(row.step for row in rows),
        seconds=tuple(row.seconds for row in rows),
        redone=tuple(row.redone for row in rows),
        values={name: column(rows, *what) for name, what in columns.items()},
    )


def learning(rows: Sequence[Row]) -> Curve:
    """The loss of the steps, and their learning rate and gradient norm where these are on record."""
    known = {name for row in rows for name in row.cells}
    spread = [name for name in ("loss", "grad_norm") if name == "loss" or name in known]
    columns = {f"{name}{end}": (name, what) for name in spread for end, what in _SPREAD.items()}
    return curve(rows, **columns, **({"lr": ("lr", "mean")} if "lr" in known else {}))


_SPREAD = {"": "mean", "_low": "low", "_high": "high"}


def pace(rows: Sequence[Row]) -> Curve:
    """How long steps took, and how many samples a second that was."""
    lengths = curve(rows, ms=("ms", "mean"), ms_low=("ms", "low"), ms_high=("ms", "high"))
    samples, ms = column(rows, "samples", "sum"), column(rows, "ms", "sum")
    throughput = tuple(
        1e3 * one / spent if one is not None and spent else None for one, spent in zip(samples, ms, strict=True)
    )
    return dataclasses.replace(lengths, values={"throughput": throughput, **lengths.values})
