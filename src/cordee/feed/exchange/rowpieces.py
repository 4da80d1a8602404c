"""Pieces of a store, or of another source of samples: rows in batches, as `map` gets them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cordee.feed.exchange.pieces import Piece
from cordee.feed.source import Source, map_tensors
from cordee.feed.steps.user import given
from cordee.feed.store.opened import Store


@dataclass(frozen=True)
class StoreRows:
    """Rows of a store; a piece names its set."""

    store: Store

    def items(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """One batch: a dict of arrays, texts as objects."""
        yield given(self.store.sets[piece.name].rows(np.arange(piece.start, piece.stop, dtype=np.int64)))


@dataclass(frozen=True)
class Samples:
    """Samples of a source."""

    source: Source

    def items(self, piece: Piece) -> Iterator[Any]:
        """One batch, as the source gives it, with arrays in place of tensors."""
        to_array: Any = torch.Tensor.numpy
        yield map_tensors(to_array, self.source.gather(np.arange(piece.start, piece.stop, dtype=np.int64)))
