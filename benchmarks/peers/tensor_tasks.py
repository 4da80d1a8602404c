"""What is trained by tensor parallelism: a GPT whose attention computes with any number of heads."""

from __future__ import annotations

import torch
from tasks import Task
from torch import Tensor, nn
from torch.nn import functional

LENGTH = 64


class Block(nn.Module):
    """A transformer block with a layer for each of query, key and value: 12 times the square of its width."""

    def __init__(self, width: int, heads: int) -> None:
        """Make the layers."""
        super().__init__()
        self.each = width // heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.up, self.down = nn.Linear(width, width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        normed = self.before(x)
        parts = [layer(normed).unflatten(-1, (-1, self.each)) for layer in (self.query, self.key, self.value)]
        query, key, value = (part.transpose(1, 2) for part in parts)  # each (batch, heads, length, width of a head)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        y: Tensor = x + self.down(functional.gelu(self.up(self.after(x))))
        return y


class Gpt(nn.Module):
    """Blocks over words."""

    def __init__(self, words: int, width: int, depth: int, heads: int) -> None:
        """Make the layers."""
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length) to (batch, length, words)."""
        seen = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            seen = block(seen)
        y: Tensor = self.head(self.norm(seen))
        return y


def _next_word(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def _task(words: int, width: int, depth: int, batch: int, chunk: int) -> Task:
    def texts() -> tuple[Tensor, Tensor]:
        letters = torch.randint(words, (1024, LENGTH + 1), generator=torch.Generator().manual_seed(1))
        return letters[:, :-1].contiguous(), letters[:, 1:].contiguous()

    return Task(lambda: Gpt(words, width, depth, 8), _next_word, texts, batch=batch, chunk=chunk, goal=0.97)


TASKS = {
    "gpt": _task(words=256, width=384, depth=6, batch=16, chunk=4),
    "words": _task(words=16_384, width=256, depth=4, batch=8, chunk=4),
}
"""By name: blocks above all, 10.9 million parameters; and a large vocabulary, which both sides cut, 11.6 million."""
