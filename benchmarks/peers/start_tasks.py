"""What is started and ended: fully connected models of so many million parameters, with little to compute."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import torch
from torch import nn

BATCH = 8
STEPS = 6
MAKING = {"began": 0.0, "ended": 0.0}
"""When this process made its model, by the time of day."""


def width_of(millions: float) -> int:
    """Of 15 square layers that have so many parameters together."""
    return round(math.sqrt(millions * 1e6 / 15))


def make_model(millions: float) -> nn.Module:
    """Fifteen layers; what their random numbers cost is taken down."""
    MAKING["began"] = time.time()
    width = width_of(millions)
    layers: list[nn.Module] = []
    for _ in range(15):
        layers += [nn.Linear(width, width, bias=False), nn.ReLU()]
    model = nn.Sequential(*layers)
    MAKING["ended"] = time.time()
    return model


def make_data(millions: float) -> tuple[torch.Tensor, torch.Tensor]:
    """As many samples as the steps need."""
    torch.manual_seed(1)
    return torch.randn(BATCH * STEPS, width_of(millions)), torch.randn(BATCH * STEPS, width_of(millions))


def make_optimizer(millions: float, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW, whose state is twice the model; for a thousand million parameters SGD, which has none."""
    if millions >= 1_000:
        return torch.optim.SGD(parameters, lr=1e-3, fused=True)
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True)
