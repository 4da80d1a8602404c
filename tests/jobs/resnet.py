"""ResNet-18 as published, for small pictures (a first convolution of 3 x 3, no pooling after it), and narrow."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import cordee
from cordee.train.job import Save, Stop


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride > 1 or before != after:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.downsample is None else self.downsample(x)
        return torch.as_tensor(self.relu(out))


class ResNet18(nn.Module):
    def __init__(self, width: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        for number in range(1, 5):
            before, after, stride = widths[number - 1], widths[number], 1 if number == 1 else 2
            setattr(self, f"layer{number}", nn.Sequential(Block(before, after, stride), Block(after, after, 1)))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        out: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return out


def job(stop_steps: int | None = None, save_steps: int | None = None) -> cordee.Job:
    samples = cordee.data.digits(validation=0.1, test=0.1).train.gather(np.arange(407))
    return cordee.Job(
        model=lambda: ResNet18().double(),
        loss=nn.functional.cross_entropy,
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-3),
        data=(samples["x"].double().view(-1, 1, 8, 8), samples["y"]),
        batch=37,
        epochs=2,
        clip=0.5,
        stop=Stop(steps=stop_steps),
        save=Save(steps=save_steps),
    )
