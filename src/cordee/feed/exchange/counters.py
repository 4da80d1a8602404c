"""What a map-reduce has done: rows, bytes, tries and time, as one value."""

from __future__ import annotations

from dataclasses import dataclass, fields

from cordee.core.words import amount


@dataclass(frozen=True)
class Counters:
    """Of a task, or of all of them; `str()` gives a table."""

    items: int = 0
    """Lines, items or rows that were mapped."""
    pairs_mapped: int = 0
    bytes_mapped: int = 0
    """What the pairs that `map` gave would take, each by itself."""
    pairs_combined: int = 0
    bytes_combined: int = 0
    """The same, of the pairs that `combine` left; without it, of all."""
    bytes_exchanged: int = 0
    """What went from map to reduce, in files."""
    bytes_spilled: int = 0
    """What was written besides, because it did not fit the memory budget."""
    spills: int = 0
    keys: int = 0
    bytes_reduced: int = 0
    """The result, in files."""
    map_tasks: int = 0
    map_tries: int = 0
    """As many as tasks, and one more for each whose process died."""
    reduce_tasks: int = 0
    reduce_tries: int = 0
    map_s: float = 0.0
    """Seconds of all processes together."""
    reduce_s: float = 0.0
    seconds: float = 0.0
    """From the call to the result."""

    def __add__(self, other: Counters) -> Counters:
        """Of both."""
        return Counters(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})

    def __str__(self) -> str:
        """A line for each stage."""
        left = f"{self.bytes_combined / self.bytes_mapped:.1%}" if self.bytes_mapped else "nothing"
        return "\n".join(
            [
                f"map       {self.items:,} items, {self.pairs_mapped:,} pairs, {amount(self.bytes_mapped)}; "
                f"{_tries(self.map_tasks, self.map_tries)}; {self.map_s:.2f} s",
                f"combine   {self.pairs_combined:,} pairs, {amount(self.bytes_combined)}: {left} of the bytes",
                f"exchange  {amount(self.bytes_exchanged)}",
                f"spill     {amount(self.bytes_spilled)} in {self.spills:,} files",
                f"reduce    {self.keys:,} keys, {amount(self.bytes_reduced)}; "
                f"{_tries(self.reduce_tasks, self.reduce_tries)}; {self.reduce_s:.2f} s",
                f"in all    {self.seconds:.2f} s",
            ]
        )


def _tries(tasks: int, tries: int) -> str:
    return f"{tasks:,} tasks" + (f", {tries:,} tries" if tries != tasks else "")
