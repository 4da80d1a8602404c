"""What feeds a framework on a GPU: a `DataLoader` with 8 processes and pinned memory.

The quickest way, where batches are gathered at once; or, asked for as `usual`, PyTorch's own way, sample by sample.
"""

from __future__ import annotations

from typing import Any

from gathered import Gathered, unchanged
from gpu_tasks import GpuTask
from torch.utils.data import DataLoader, Dataset, TensorDataset


def loader(task: GpuTask, *, usual: bool = False) -> DataLoader[Any]:
    """A loader over the task's data."""
    x, y = task.data()
    data: Dataset[Any] = TensorDataset(x, y) if usual else Gathered(x, y)
    return DataLoader(
        data,
        batch_size=task.batch,
        shuffle=True,
        drop_last=True,
        collate_fn=None if usual else unchanged,
        num_workers=8,
        pin_memory=True,
        persistent_workers=True,
        prefetch_factor=4,
    )
