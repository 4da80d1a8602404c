"""Random draws of a pass, as they are recorded for the whole batch and given to its parts again, each its own slice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LAYOUTS = ("samples first", "samples last", "one call per sample")
"""How the samples of a batch may lie in what is drawn for them, in the order in which that is tried."""


class ReplayFailed(Exception):
    """A part of the batch draws something that has no counterpart in what the whole has drawn."""


@dataclass(frozen=True)
class Draw:
    """One call that drew: of what, and what came out of it."""

    kind: str
    value: Any
    bounds: tuple[Any, ...] = ()
    """Of whole numbers: between what they were drawn."""

    @property
    def form(self) -> tuple[Any, ...]:
        """The kind and the shape: two passes that draw alike have the same forms in the same order."""
        return (self.kind, *(self.value.shape if isinstance(self.value, Tensor) else np.shape(self.value)))


@dataclass(frozen=True)
class Slice:
    """Which samples of the whole a part holds, and how they lie in what was drawn for the whole."""

    draws: list[Draw]
    """Of the whole."""
    count: int
    start: int
    stop: int
    layout: str
    calls: int = 0
    """With one call per sample: how many calls the part makes."""

    def of(self, place: int, own: Draw) -> Any:
        """What the call at `place` of the part has to give, which drew `own` by itself.

        Never a number beyond its bounds: as an index it would end all use of a GPU.
        """
        if self.layout == LAYOUTS[2]:
            place = self._shifted(place)
        whole = self.draws[place] if 0 <= place < len(self.draws) else None
        if whole is None or (whole.kind, whole.bounds) != (own.kind, own.bounds):
            raise ReplayFailed
        given, wanted = whole.form[1:], own.form[1:]
        if given == wanted:
            return whole.value
        changed = [axis for axis, pair in enumerate(zip(given, wanted, strict=False)) if pair[0] != pair[1]]
        if len(given) != len(wanted) or len(changed) != 1:
            raise ReplayFailed
        chosen = self._chosen(given[changed[0]], wanted[changed[0]])
        if isinstance(whole.value, Tensor):
            return whole.value.index_select(changed[0], torch.from_numpy(chosen).to(whole.value.device))
        return np.take(whole.value, chosen, changed[0])

    def _chosen(self, given: int, wanted: int) -> NDArray[np.int64]:
        """Which of the `given` numbers along a dimension are those of our samples."""
        index = np.arange(given)
        if self.layout == LAYOUTS[1]:
            each = given // self.count  # numbers per sample
            if given != each * self.count or wanted != each * (self.stop - self.start):
                raise ReplayFailed
            return index.reshape(each, self.count)[:, self.start : self.stop].ravel()
        if wanted > given:
            raise ReplayFailed
        # A part is the beginning or the end of the whole; samples may draw more or less often than others.
        return index[:wanted] if not self.start else index[given - wanted :]

    def _shifted(self, place: int) -> int:
        """Behind what is drawn once for all, every sample has as many calls as any other."""
        more, others = len(self.draws) - self.calls, self.count - (self.stop - self.start)
        each = more // others
        once = self.calls - each * (self.stop - self.start)
        return place if place < once else place + self.start * each
