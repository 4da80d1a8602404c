"""Long series made short while they come in: neighbouring rows are put together, and every number stays in some row."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cordee.watch.summary import Column, Curve


@dataclass(slots=True)
class Row:
    """What some consecutive steps have in common."""

    section: int
    step: int = 0
    """The last step in it."""
    seconds: float = 0.0
    """When that step was."""
    count: int = 0
    redone: bool = False
    """Whether its steps were done again after a resume."""
    cells: dict[Any, list[float]] = field(default_factory=dict)
    """Number, sum, least and greatest of the values of each name."""

    def note(self, name: Hashable, value: float | None) -> None:
        """Keep one value; None is no value."""
        if value is not None:
            self.merge(name, (1.0, value, value, value))

    def note_all(self, name: Hashable, values: Sequence[float]) -> None:
        """Keep several values, one at least."""
        self.merge(name, (len(values), sum(values), min(values), max(values)))

    def merge(self, name: Hashable, other: Iterable[float]) -> None:
        """Keep what another cell holds."""
        if (cell := self.cells.get(name)) is None:
            self.cells[name] = [*other]
        else:
            count, total, low, high = other
            cell[:] = cell[0] + count, cell[1] + total, min(low, cell[2]), max(high, cell[3])


class Thinner:
    """At most `most` rows of however many steps, in the order in which they came.

    When it is full, neighbours are put together in pairs, and from then on a row takes twice as many steps.
    """

    def __init__(self, most: int) -> None:
        """Four rows or more."""
        assert most >= 4
        self.rows: list[Row] = []
        self._most = most
        self._width = 1
        self._section = 0

    def room(self) -> int:
        """How many steps the next `row` may stand for."""
        last = self._open()
        return self._width if last is None else self._width - last.count

    def row(self, step: int, seconds: float, count: int = 1) -> Row:
        """The row that takes the values of this step, or of `count` steps that end with it."""
        last = self._open()
        if last is None:
            if len(self.rows) >= self._most:
                self._halve()
                return self.row(step, seconds, count)
            last = Row(self._section)
            self.rows.append(last)
        last.count += count
        last.step = step
        last.seconds = seconds
        return last

    def _open(self) -> Row | None:
        """The last row, if it may take more."""
        last = self.rows[-1] if self.rows else None
        return last if last and last.count < self._width and last.section == self._section else None

    def go_on_after(self, step: int) -> None:
        """A new section of the run begins: rows beyond `step` will be done again, and no row spans both."""
        self.cut()
        for row in self.rows:
            row.redone |= row.step > step

    def cut(self) -> None:
        """What comes from here on is of another kind than what came before: no row spans both."""
        self._section += 1

    def _halve(self) -> None:
        """Put neighbours together; rows of two sections stay apart, unless there are too many sections to keep."""
        self._width *= 2
        apart = len({row.section for row in self.rows}) <= self._most // 2
        rows: list[Row] = []
        for row in self.rows:
            last = rows[-1] if rows else None
            fits = last is not None and last.count + row.count <= self._width
            if last is not None and fits and (not apart or last.section == row.section):
                last.step, last.seconds, last.section = row.step, row.seconds, row.section
                last.count += row.count
                last.redone = last.redone and row.redone
                for name, cell in row.cells.items():
                    last.merge(name, cell)
            else:
                rows.append(row)
        self.rows = rows


def column(rows: Sequence[Row], name: Hashable, what: str = "mean") -> Column:
    """The `mean`, `low`, `high` or `sum` of one name, one value per row; None where a row has none."""
    cells = [row.cells.get(name) for row in rows]
    if what == "mean":
        return tuple(None if cell is None else cell[1] / cell[0] for cell in cells)
    place = ("count", "sum", "low", "high").index(what)
    return tuple(None if cell is None else cell[place] for cell in cells)


def spread(rows: Sequence[Row], name: str) -> dict[str, Column]:
    """The mean, the least and the greatest of one name."""
    ends = {"": "mean", "_low": "low", "_high": "high"}
    return {f"{name}{end}": column(rows, name, what) for end, what in ends.items()}


def rate(rows: Sequence[Row], name: str, per: str) -> Column:
    """The sum of one name over that of another; None where that is 0 or one of them is not known."""
    pairs = zip(column(rows, name, "sum"), column(rows, per, "sum"), strict=True)
    return tuple(over / under if over is not None and under else None for over, under in pairs)


def places(rows: Sequence[Row]) -> tuple[tuple[int, ...], tuple[float, ...], tuple[bool, ...]]:
    """The last step of each row, when it was, and whether it was done again."""
    return tuple(row.step for row in rows), tuple(row.seconds for row in rows), tuple(row.redone for row in rows)


def curve(rows: Sequence[Row], values: dict[str, Column]) -> Curve:
    """The rows as a curve of these columns."""
    return Curve(*places(rows), values=values)
