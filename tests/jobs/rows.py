"""Embeddings with sparse gradients, beside dense layers, on samples of a few words each."""

from __future__ import annotations

import instants
import numpy as np
import torch
from torch import Tensor, nn

import cordee
from cordee.group.team import Team

WORDS = 400


class Rows(nn.Module):
    """`rare` is an embedding that few samples use; `late`, one that none uses in the first steps."""

    def __init__(self, sparse_only: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 6, sparse=True)
        self.bag = nn.EmbeddingBag(WORDS, 6, mode="mean", sparse=True)
        self.rare = nn.Embedding(WORDS, 6, sparse=True)
        self.late = nn.Embedding(WORDS, 6, sparse=True)
        self.head = None if sparse_only else nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
        self.double()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.words(x).mean(1) + self.bag(x)
        for layer, used in ((self.rare, x[:, 0] < 20), (self.late, x[:, 3] >= 60)):
            if bool(used.any()):
                out = out.index_add(0, used.nonzero()[:, 0], layer(x[used, 0]))
        return out[:, :3] if self.head is None else self.head(out)


OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.5),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.05),
    "sparseadam": lambda params: torch.optim.SparseAdam(params, lr=0.01),
}


def samples(count: int = 260) -> tuple[Tensor, Tensor]:
    draws = np.random.default_rng(0)
    x = draws.integers(0, 60, (count, 4))
    x[:, 0] = draws.integers(0, WORDS, count)
    return torch.from_numpy(x), torch.from_numpy(draws.integers(0, 3, count))


def job(
    optimizer: str = "sgd", sparse_only: bool = False, clip: float = 0.0, acts: str = "", words: str = ""
) -> cordee.Job:
    if acts:
        instants.place(Team, words, acts)
    return cordee.Job(
        model=lambda: Rows(sparse_only),
        loss=nn.functional.cross_entropy,
        optimizer=OPTIMIZERS[optimizer],
        data=samples(),
        batch=29,
        epochs=1,
        clip=clip or None,
    )
