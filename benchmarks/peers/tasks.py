"""What is trained in the comparisons: models and data that every system gets alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Task:
    """One model with its data; `batch` is that of the whole step."""

    model: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    data: Callable[[], tuple[Tensor, Tensor]]
    batch: int
    chunk: int
    """Steps between two turns: about a second's worth of work."""
    goal: float | None = None
    """What the lower end of the interval has to reach."""

    def optimizer(self, parameters: object) -> torch.optim.Optimizer:
        """The one that a careful person takes."""
        return torch.optim.AdamW(parameters, lr=1e-4, fused=True)  # type: ignore[arg-type]


class Convolutions(nn.Module):
    """Two convolutions and two linear layers for images of 28 x 28, with dropout: 1.2 million parameters."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)
        )
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(64 * 12 * 12, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 1, 28, 28) to (batch, 10)."""
        y: Tensor = self.head(self.features(x))
        return y


class Block(nn.Module):
    """A transformer block: attention to what came before, then a wide layer."""

    def __init__(self, width: int, heads: int) -> None:
        """Make the layers."""
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixing, self.joining = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        batch, length, width = x.shape
        mixed = self.mixing(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.joining(seen.transpose(1, 2).reshape(batch, length, width))
        y: Tensor = x + self.wide(self.after(x))
        return y


class Gpt(nn.Module):
    """Six blocks over bytes: 4.9 million parameters."""

    def __init__(self, length: int = 64, width: int = 256, depth: int = 6, heads: int = 8) -> None:
        """Make the layers."""
        super().__init__()
        self.letters, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)), nn.LayerNorm(width))
        self.head = nn.Linear(width, 256)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length) to (batch, length, 256)."""
        y: Tensor = self.head(self.blocks(self.letters(x) + self.places.weight[: x.shape[1]]))
        return y


def _images() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(16_384, 1, 28, 28), torch.randint(10, (16_384,))


def _texts() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    letters = torch.randint(256, (16_384, 65))
    return letters[:, :-1].contiguous(), letters[:, 1:].contiguous()


def _rows() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(60_000, 64), torch.randint(10, (60_000,))


def _next_letter(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


TASKS = {
    "cnn": Task(Convolutions, functional.cross_entropy, _images, batch=128, chunk=8, goal=0.97),
    "gpt": Task(Gpt, _next_letter, _texts, batch=16, chunk=4, goal=0.97),
    "mlp": Task(
        lambda: nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)),
        functional.cross_entropy, _rows, batch=250, chunk=500,
    ),
}  # fmt: skip
"""By name. The steps of `mlp` are so short that they show what a step costs besides its computation."""
