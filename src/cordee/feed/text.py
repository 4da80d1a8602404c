"""Text as bytes: windows of a file and what follows each byte, for language models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from cordee.core.errors import DataError
from cordee.feed.permute import Ids
from cordee.feed.source import Fields, Traits, check_ids, digest_of, spread

Bytes = NDArray[np.uint8]
"""The bytes of a text or of a piece of it, in memory or mapped from a file."""

_SAMPLED_BYTES = 1_024


class TextSource:
    """Windows of `window` bytes (x) and the same windows one byte later (y), each int64 of shape (window,)."""

    def __init__(self, texts: Sequence[Bytes], window: int = 128, stride: int | None = None) -> None:
        """Begin a window every `stride` bytes (default: `window`) of every text; none lies across two texts."""
        stride = window if stride is None else stride
        if window < 1 or stride < 1:
            raise DataError(f"window={window}, stride={stride}: both must be at least 1")
        self.window, self.stride = window, stride
        self.traits = Traits(runs_user_code=False)
        # Views of shape (windows, window + 1); nothing is copied before a row is gathered.
        long_enough = [text for text in texts if len(text) > window]
        self._views = [sliding_window_view(text, window + 1)[::stride] for text in long_enough]
        self._ends = np.cumsum([len(view) for view in self._views], dtype=np.int64)
        self._texts = long_enough
        if not self._views:
            longest = max((len(text) for text in texts), default=0)
            raise DataError(
                f"the longest text (or part of it set aside for validation or test) has {longest} bytes, but a window "
                f"of {window} needs {window + 1}: choose a smaller window or more text"
            )

    def __len__(self) -> int:
        """How many windows there are."""
        return int(self._ends[-1])

    @cached_property
    def fingerprint(self) -> str:
        """Made of window, stride, lengths and a KiB at 64 places of every text."""
        parts: list[bytes | NDArray[Any]] = [f"text {self.window} {self.stride}".encode()]
        for text in self._texts:
            parts.append(str(len(text)).encode())
            places = spread(max(1, len(text) - _SAMPLED_BYTES + 1))
            parts += [text[place : place + _SAMPLED_BYTES] for place in places]
        return digest_of(parts)

    def buffers(self, count: int, *, pin: bool = False) -> Fields:
        """Memory for `count` windows."""
        return {name: torch.empty((count, self.window), dtype=torch.int64, pin_memory=pin) for name in ("x", "y")}

    def gather(self, ids: Ids, out: Fields | None = None) -> Fields:
        """The windows `ids`."""
        check_ids(ids, len(self))
        if out is None:
            out = self.buffers(len(ids))
        fields = {name: out[name][: len(ids)] for name in ("x", "y")}
        x, y = fields["x"].numpy(), fields["y"].numpy()
        owners = np.searchsorted(self._ends, ids, side="right")
        for owner in np.unique(owners):
            chosen = np.flatnonzero(owners == owner)
            view = self._views[owner]
            rows = view[ids[chosen] - (int(self._ends[owner]) - len(view))]
            x[chosen] = rows[:, :-1]
            y[chosen] = rows[:, 1:]
        return fields


def cut(texts: Sequence[Bytes], ratios: Sequence[float]) -> list[list[Bytes]]:
    """Cut the texts, laid end to end, into consecutive parts of these ratios; the last takes the rest."""
    total = sum(len(text) for text in texts)
    marks = [0, *(round(total * float(part)) for part in np.cumsum(ratios)[:-1]), total]
    starts = [0, *(int(end) for end in np.cumsum([len(text) for text in texts]))]
    return [
        [
            text[max(0, low - start) : max(0, high - start)]
            for text, start in zip(texts, starts, strict=False)
            if low < start + len(text) and high > start
        ]
        for low, high in pairwise(marks)
    ]
