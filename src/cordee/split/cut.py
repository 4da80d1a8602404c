"""Which layers of a model are cut over workers, and how: a value that is printed, compared and carried out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

WORDS = {"column": "column", "row": "row", "colwise": "column", "rowwise": "row"}
"""How a job may name a cut, and what it is called here."""
CORRECTIONS = {"vocabulary": "vocabulary", "whole": "whole"}
"""The same, of words by which a job corrects what is found: if it gives no others, the rest is found by itself."""


@dataclass(frozen=True)
class LayerCut:
    """One layer, and how it is cut."""

    layer: str
    """Its name, as `named_modules` has it."""
    how: str
    """`column`: each worker computes some of its outputs. `row`: it takes some of its inputs, and the outputs are added
    up. `heads`: some heads of an `nn.MultiheadAttention`. `vocabulary`: some rows of an embedding or a head, whose
    outputs are whole. `style`: by a `ParallelStyle` of torch."""
    shape: tuple[int, ...] = ()
    """Of its whole weight."""
    group: int = 0
    """Layers of one group are cut together: activations stay in slices from its columns to its row."""
    blocks: int = 1
    """So many layers of equal size lie side by side in it, as query, key and value do; each of them is cut."""
    reason: str = ""


@dataclass(frozen=True)
class Whole:
    """A layer with a weight matrix that every worker holds whole, and why."""

    layer: str
    shape: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Setting:
    """A number of a module that is smaller where it computes with a slice: of heads, or of features."""

    module: str
    name: str
    value: int


@dataclass(frozen=True)
class Site:
    """A module before which the tokens of all workers are gathered."""

    module: str
    arguments: tuple[int | str, ...]
    """Which of its arguments: by place, or by name."""


@dataclass(frozen=True)
class Stream:
    """Blocks in which each worker holds some of the tokens, but for what is between a site and a row layer."""

    first: str
    last: str
    into: int | str
    """Which argument of a block the tokens are, by place or by name."""
    out_of: int
    """Which of its results they are; 0 also where it returns one tensor alone."""
    sites: tuple[Site, ...]
    rows: tuple[str, ...]
    """After these layers each worker keeps its own tokens."""
    partial: tuple[str, ...]
    """Parameters that act on some of the tokens: their gradients are added up."""


@dataclass(frozen=True)
class Cut:
    """How the layers of a model lie over `slices` workers."""

    slices: int
    layers: tuple[LayerCut, ...]
    """Those that are cut, in the order in which the model calls them."""
    whole: tuple[Whole, ...] = ()
    settings: tuple[Setting, ...] = ()
    partial: tuple[str, ...] = ()
    """Parameters that are whole and act on slices, such as a norm of each head: their gradients are added up."""
    parameters: tuple[int, int] = (0, 0)
    """How many numbers a worker holds at most, and how many the model has; 0: not counted."""
    streams: tuple[Stream, ...] = ()
    """With `sequence=true`: where workers hold some of the tokens."""
    whole_streams: tuple[Whole, ...] = ()
    """The same: lists of blocks where every worker holds all of them, and why."""

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """A table: layer, shape, cut, why."""
        rows = [("layer", "weight", "cut", "why"), *self._rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows
        ]
        for one in self.streams:
            lines.append(f"Each worker holds some of the tokens from {one.first} to {one.last}.")
        lines += [f"All workers hold all tokens in {one.layer}: {one.reason}." for one in self.whole_streams]
        if all(self.parameters):
            held, of = self.parameters
            lines.append(f"Each worker holds {held:,} of {of:,} parameters, {held / of:.0%}.")
        return "\n".join(lines)

    def _rows(self) -> Iterator[tuple[str, str, str, str]]:
        for one in self.layers:
            how = f"{one.how} ({one.blocks} parts)" if one.blocks > 1 and one.how != "heads" else one.how
            yield one.layer, _written(one.shape), how, one.reason
        for each in self.whole:
            yield each.layer, _written(each.shape), "whole", each.reason


def _written(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
