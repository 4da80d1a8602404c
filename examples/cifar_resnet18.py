"""ResNet-18 on CIFAR-10 with random crops and flips: every sample has draws of its own, on any number of workers.

cordee train examples/cifar_resnet18.py --set data=path/to/cifar-10-batches-bin    (CIFAR-10's binary version)
cordee train examples/cifar_resnet18.py --set width=8 --set epochs=3               (a quick try without the data)
"""

from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn

import cordee


def conv(before: int, width: int, size: int, stride: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(before, width, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(width)


class Block(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*conv(before, width, 3, stride), nn.ReLU(), *conv(width, width, 3, stride=1))
        self.shortcut = nn.Sequential(*conv(before, width, 1, stride)) if before != width else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.body(x) + self.shortcut(x)).relu()


def resnet18(width: int) -> nn.Module:
    widths = [width * factor for factor in (1, 1, 1, 2, 2, 4, 4, 8, 8)]
    blocks = [Block(a, b, stride=1 if a == b else 2) for a, b in pairwise(widths)]
    end = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))
    return nn.Sequential(*conv(3, width, 3, stride=1), nn.ReLU(), *blocks, *end)


def augment(x: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Shift each image by up to 4 pixels and mirror half of them, all at once, where the batch lies."""
    places, images = torch.arange(32, device=x.device), torch.arange(len(x), device=x.device)
    rows, columns = ((9 * draws[:, :2]).long()[:, :, None] + places).unbind(1)  # each (samples, 32)
    columns = torch.where(draws[:, 2:] < 0.5, columns, columns.flip(1))
    padded = nn.functional.pad(x, (4, 4, 4, 4)).movedim(1, 3)  # channels last: indices pick whole pixels
    return padded[images[:, None, None], rows[:, :, None], columns[:, None, :]].movedim(3, 1)


def read(folder: str, *names: str) -> tuple[np.ndarray, np.ndarray]:
    """Files of records: one byte for the class, then 3 x 32 x 32 bytes of the image."""
    records = np.concatenate([np.fromfile(Path(folder, f"{name}.bin"), np.uint8).reshape(-1, 3073) for name in names])
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def job(data: str = "", width: int = 64, epochs: int = 30, lr: float = 0.1, seed: int = 0) -> cordee.Job:
    def objective(model: nn.Module, batch):
        # Drawn from seed, epoch and sample, not from a worker's random state: whoever has the sample sees this image.
        x = augment(batch.x, cordee.data.draws(batch, 3)) if model.training else batch.x
        scores = model(x)
        return nn.functional.cross_entropy(scores, batch.y), scores  # the metrics want the scores

    if data:
        train, test = read(data, *(f"data_batch_{number}" for number in range(1, 6))), read(data, "test_batch")
    else:  # noise over a pattern of squares for each class
        random, test = np.random.default_rng(0), 0.2
        squares, y = random.integers(0, 128, (4, 4, 3, 10)).repeat(8, 0).repeat(8, 1), random.integers(0, 10, 2500)
        train = (squares[..., y] + random.integers(0, 128, (32, 32, 3, 2500))).T.astype(np.uint8), y
        if cordee.World.from_env().rank == 0:
            print("note: these images are random, not CIFAR-10: give --set data=FOLDER", flush=True)
    return cordee.Job(
        model=lambda: resnet18(width),
        objective=objective,
        optimizer=lambda params: torch.optim.SGD(params, lr=lr, momentum=0.9, weight_decay=5e-4),
        schedule=lambda sgd: torch.optim.lr_scheduler.StepLR(sgd, step_size=1 + epochs // 3),
        schedule_per="epoch",
        data=cordee.data.arrays(*train, test=test, scale=True),
        batch=128,
        epochs=epochs,
        seed=seed,
        metrics={"top1": cordee.metrics.accuracy, "top5": cordee.metrics.top5},
    )
