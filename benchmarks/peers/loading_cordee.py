"""Cordée's store, read as a training reads it; and numpy's `take` of the same columns, which is the limit."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loading_data import BATCH, SAMPLES, SEED, SHAPE

from cordee.feed.feeder import Feeder, Slot
from cordee.feed.order import Order
from cordee.feed.places import Place
from cordee.feed.share import Shares
from cordee.feed.sources.arrays import ArrayReader
from cordee.feed.store.build import build
from cordee.feed.store.opened import open_store
from cordee.feed.store.recipe import Recipe
from cordee.group.team import Team

PAIRS = 40


class _Reading:
    def __init__(self, folder: Path) -> None:
        source = open_store(folder / "store").sets["train"]
        self._order = Order(len(source), BATCH, seed=SEED)
        self._feeder = Feeder(source, self._order, Shares(), Team())
        self._next = 0, 0

    def epoch(self, number: int, start: int = 0) -> Iterator[Any]:
        for step in range(start, self._order.steps):
            batch = self._feeder.take(Slot(number, step))
            self._next = number, step + 1
            yield batch.x, batch.y

    def state(self) -> Any:
        """Order, seed and data are the job's: what moves is the place in them."""
        return dict(zip(("epoch", "step"), self._next, strict=True))

    def resume(self, state: Any) -> Iterator[Any]:
        return self.epoch(state["epoch"], state["step"])


class Cordee:
    """A store as `cordee data build` makes it."""

    def write(self, folder: Path, x: np.ndarray, y: np.ndarray) -> None:
        """From an npz file."""
        raw = folder / "samples.npz"
        np.savez(raw, x=x, y=y)
        build(Recipe(ArrayReader(), (Place(str(raw), raw.name, raw.stat().st_size, "1"),)), folder / "store")
        raw.unlink()

    def open(self, folder: Path) -> _Reading:
        """Open the store, and the feeder of a worker that is alone."""
        return _Reading(folder)

    def limit(self, open_it: Any, asked: dict[str, Any]) -> dict[str, Any]:
        """Epochs of ours and of `np.take` into one buffer, in turns, on one core; the ids of `take` are made before."""
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        torch.set_num_threads(1)
        reading = open_it()
        columns = [np.empty((SAMPLES, *SHAPE), np.uint8), np.empty(SAMPLES, np.int64)]
        for x, y in reading.epoch(0):
            columns[0][y.numpy()], columns[1][y.numpy()] = x.numpy(), y.numpy()
        out = [np.empty((BATCH, *column.shape[1:]), column.dtype) for column in columns]
        order = Order(SAMPLES, BATCH, seed=SEED)
        bare, ours = [], []
        for pair in range(1, PAIRS + 1):
            ids = order.span(pair, range(order.steps))
            began = time.perf_counter()
            for at in range(0, SAMPLES, BATCH):
                part = ids[at : at + BATCH]
                for column, buffer in zip(columns, out, strict=True):
                    np.take(column, part, axis=0, out=buffer[: len(part)], mode="clip")
            bare.append(time.perf_counter() - began)
            began = time.perf_counter()
            for _ in reading.epoch(pair):
                pass
            ours.append(time.perf_counter() - began)
        ratios = [one / other for one, other in zip(bare, ours, strict=True)]
        return {
            "take_rate": SAMPLES / statistics.median(bare),
            "cordee_rate": SAMPLES / statistics.median(ours),
            "ratios": ratios,
        }


CORDEE = Cordee()
