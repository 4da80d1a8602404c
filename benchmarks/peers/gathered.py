"""The quickest way to feed a `DataLoader` from memory: a batch is gathered at once instead of sample by sample.

Accelerate, Lightning and Ray Train all expect a `DataLoader`; with this one they do not pay for its default collation,
which would hide what they cost themselves. `ddp_loader.py` is the loop that pays for it.
"""

from __future__ import annotations

from typing import Any

import torch
from tasks import Task
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class Gathered(Dataset[Any]):
    """Samples in memory; `DataLoader` calls `__getitems__`, where there is one, with all ids of a batch."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        """Keep them."""
        self.x, self.y = x, y

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """One sample; nobody asks for it here."""
        return self.x[index], self.y[index]

    def __getitems__(self, ids: list[int]) -> tuple[Tensor, Tensor]:
        """A whole batch."""
        chosen = torch.tensor(ids)
        return self.x.index_select(0, chosen), self.y.index_select(0, chosen)


def unchanged(batch: Any) -> Any:
    """What there is to collate in a batch that was gathered at once."""
    return batch


def loader(task: Task, size: int) -> DataLoader[Any]:
    """One rank's loader, before the system has made it distributed: `batch_size` is that of one rank."""
    data = Gathered(*task.data())
    return DataLoader(data, batch_size=task.batch // size, shuffle=True, drop_last=True, collate_fn=unchanged)
