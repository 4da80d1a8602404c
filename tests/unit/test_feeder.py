"""The feeder: who reads what it hands out."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import torch

from cordee.feed.feeder import Feeder, Slot
from cordee.feed.order import Order
from cordee.feed.share import Shares
from cordee.feed.source import Traits
from cordee.group.team import Team


class Slow:
    """A source that is worth a thread, and writes down which thread reads what."""

    fingerprint = ""
    traits = Traits()

    def __init__(self) -> None:
        self.read: list[tuple[str, int]] = []

    def __len__(self) -> int:
        return 1_000

    def buffers(self, count: int, *, pin: bool = False) -> None:
        """None: it makes its own tensors."""

    def gather(self, ids: np.ndarray, out: Any = None) -> torch.Tensor:
        time.sleep(0.01)
        self.read.append((threading.current_thread().name, int(ids[0])))
        return torch.from_numpy(ids.copy())


def test_whole_pieces_are_read_ahead_one_by_one() -> None:
    source = Slow()
    feeder = Feeder(source, Order(1_000, 10, shuffle="none"), Shares(), Team(), accumulate=4, whole=True)
    for step in range(12):
        taken = [feeder.take(Slot(0, step, piece)) for piece in feeder.own_micros(Slot(0, step))]
        assert [len(one) for one in taken] == [2, 3, 2, 3]
        assert [int(one) for each in taken for one in each.x] == list(range(10 * step, 10 * step + 10))
        assert [one for each in taken for one in each.positions] == list(range(10))
    feeder.close()
    threads = [name for name, _ in source.read]
    assert set(threads[threads.index("cordee-loader") :]) == {"cordee-loader"}


def test_once_a_thread_reads_ahead_nobody_else_reads() -> None:
    source = Slow()
    feeder = Feeder(source, Order(1_000, 10, shuffle="none"), Shares(), Team())
    for step in range(40):
        if step in (20, 21, 30):
            feeder.forget()  # the members have changed
        assert feeder.take(Slot(0, step)).x.tolist() == list(range(10 * step, 10 * step + 10))
    feeder.close()
    threads = [name for name, _ in source.read]
    first = threads.index("cordee-loader")
    assert first < 20 and set(threads[first:]) == {"cordee-loader"}
