"""What feeds a framework on a GPU: a `DataLoader` with 8 processes and pinned memory.

The quickest way, where batches are gathered at once and augmented on the GPU; or, asked for as `usual`, PyTorch's own
way: the loader's processes make and augment samples one by one.
"""

from __future__ import annotations

from typing import Any

from gathered import Gathered, unchanged
from gpu_tasks import GpuTask
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class OneByOne(Dataset[Any]):
    """Samples in memory, augmented when they are read, as datasets with torchvision's transforms are."""

    def __init__(self, task: GpuTask) -> None:
        """Keep them."""
        (self.x, self.y), self.task = task.data(), task

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """One sample."""
        return self.task.augmented_one(self.x[index]), self.y[index]


def loader(task: GpuTask, *, usual: bool = False) -> DataLoader[Any]:
    """A loader over the task's data."""
    data: Dataset[Any] = OneByOne(task) if usual else Gathered(*task.data())
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
