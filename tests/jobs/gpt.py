"""A small GPT on the bytes of one of Python's own sources."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn

import cordee
from cordee.train.job import Save, Stop

WINDOW = 16
NEWLINE = 10


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        three = self.query_key_value(self.before_attention(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = three.permute(2, 0, 3, 1, 4)  # each (batch, heads, length, width / heads)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.before_mlp(x))


class Gpt(nn.Module):
    def __init__(self, dtype: str, tied: bool, words: int, width: int = 32, heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(words, width), nn.Embedding(WINDOW, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.bytes.weight
        self.to(getattr(torch, dtype))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        out: Tensor = self.head(self.norm(self.blocks(self.bytes(x) + self.places(places))))
        return out


def job(
    dtype: str = "float64",
    tied: bool = True,
    tokens: bool = False,
    stop_steps: int | None = None,
    save_steps: int | None = None,
    words: int = 256,
    cut: str = "",
) -> cordee.Job:
    """`tokens`: newlines do not count, so samples weigh unequally. `cut`: how the head is cut."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        ignored = NEWLINE if tokens else -100
        return nn.functional.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=ignored)

    def count(batch: Any) -> float:
        return float((batch.y != NEWLINE).sum())

    return cordee.Job(
        model=lambda: Gpt(dtype, tied, words),
        loss=loss,
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-3),
        data=cordee.data.text(argparse.__file__, window=WINDOW, stride=8 * WINDOW, validation=0.1),
        batch=101,
        metrics={"accuracy": cordee.metrics.accuracy},
        weigh=count if tokens else None,
        tensor_plan={"head": cut} if cut else None,
        stop=Stop(steps=stop_steps),
        save=Save(steps=save_steps),
    )
