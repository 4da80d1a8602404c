"""What is started and ended: models of so many million parameters, with little to compute."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from gpu_tasks import LENGTH, VOCABULARY, Gpt2
from torch import Tensor, nn

BATCH = 8
STEPS = 6
MAKING = {"began": 0.0, "ended": 0.0}
"""When this process made its model, by the time of day."""


@dataclass(frozen=True)
class StartTask:
    """A model of a size, with its data, loss and optimizer."""

    build: Callable[[], nn.Module]
    data: Callable[[], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

    def model(self) -> nn.Module:
        """A new one; what its random numbers cost is taken down."""
        MAKING["began"] = time.time()
        model = self.build()
        MAKING["ended"] = time.time()
        return model


def task_of(millions: float, device: str) -> StartTask:
    """On CPUs fifteen square layers; on a GPU a GPT of width 2048, whose depth makes the size.

    AdamW has a state of twice the model; SGD, for a thousand million parameters in main memory, has none.
    """
    if device != "cpu":
        depth = max(1, round((millions * 1e6 - VOCABULARY * 2048) / (12 * 2048**2)))
        return StartTask(lambda: Gpt2(2048, depth, 16), _texts, _next_token, _adamw)
    width = round(math.sqrt(millions * 1e6 / 15))
    optimizer = _sgd if millions >= 1_000 else _adamw
    return StartTask(lambda: _layers(width), lambda: _numbers(width), nn.functional.mse_loss, optimizer)


def _layers(width: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(15):
        layers += [nn.Linear(width, width, bias=False), nn.ReLU()]
    return nn.Sequential(*layers)


def _numbers(width: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(BATCH * STEPS, width), torch.randn(BATCH * STEPS, width)


def _texts() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    tokens = torch.randint(50_257, (BATCH * STEPS, LENGTH + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _next_token(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def _adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True)


def _sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3, fused=True)
