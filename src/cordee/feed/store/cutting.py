"""How files are cut into the parts of a build, as values: what one process does without the others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cordee.feed.places import Place
from cordee.feed.sources.seam import END

_SMALLEST, _LARGEST, _PARTS = 2**20, 64 * 2**20, 8
"""Bytes of files that are one span: a part of them all, within bounds. Each span has files of its own on disk."""


@dataclass(frozen=True)
class Span:
    """Files that follow one another, many small ones or one large one; or some of the rows of a very large one."""

    number: int
    places: tuple[Place, ...]
    sizes: tuple[int, ...]
    """Bytes of each file that are in it."""
    start: int = 0
    stop: int = END
    """Of the rows of a file, where it is not all of them."""

    def __str__(self) -> str:
        """The first file, and how many others there are, or from which row on."""
        more = f" and {len(self.places) - 1} more files" if len(self.places) > 1 else ""
        return f"{self.places[0].shown}{more}{f' from row {self.start + 1}' if self.start else ''}"


def spans_of(places: Sequence[Place], edges: Callable[[Place], Sequence[int]] = lambda place: ()) -> list[Span]:
    """All files in their order; `edges` says for a large one at which rows it may be cut.

    Sizes and edges alone decide, so that any number of processes makes the same.
    """
    enough = min(_LARGEST, max(_SMALLEST, sum(place.size for place in places) // _PARTS))
    spans: list[Span] = []
    group: list[Place] = []
    size = 0

    def flush() -> None:
        nonlocal size
        if group:
            spans.append(Span(len(spans), tuple(group), tuple(place.size for place in group)))
        group.clear()
        size = 0

    for place in places:
        if size + place.size // 2 > enough:  # to the nearest: files of about one size come in equal numbers
            flush()
        parts = _parts(place, edges(place), enough) if place.size > enough else []
        if len(parts) > 1:
            first = len(spans)
            spans += [Span(first + at, (place,), (part,), *rows) for at, (part, *rows) in enumerate(parts)]
        else:
            group.append(place)
            size += place.size
    flush()
    return spans


def key_of(spans: Sequence[Span]) -> str:
    """Equal keys, equal cuts, if the files are the same."""
    return hashlib.sha256(str([(len(span.places), span.start) for span in spans]).encode()).hexdigest()[:16]


def _parts(place: Place, edges: Sequence[int], enough: int) -> list[tuple[int, int, int]]:
    """Bytes, first row and end of each part: of no more than so many bytes, as far as edges go.

    The last of the edges is the end. Rows are taken to be equally large.
    """
    cuts = [0]
    for edge, following in pairwise(edges[1:]):
        if (following - cuts[-1]) * place.size > enough * edges[-1]:
            cuts.append(edge)
    at = [place.size * cut // max(1, edges[-1]) for cut in cuts] if edges else [0]
    ends, sizes = [*cuts[1:], END], [stop - start for start, stop in zip(at, [*at[1:], place.size], strict=True)]
    return list(zip(sizes, cuts, ends, strict=True))
