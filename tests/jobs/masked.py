"""Words of which few are to be found: most samples, the first ones too, weigh nothing."""

from __future__ import annotations

import cut_models
import torch
from torch import Tensor, nn

import cordee
from cordee.train.job import Stop

IGNORED = -100


def job(kind: str = "llama", light: int = 6) -> cordee.Job:
    """Of every `light` samples in their order, one weighs something."""
    draw = torch.Generator().manual_seed(2)
    x = torch.randint(1, cut_models.WORDS, (96, cut_models.LENGTH), generator=draw)
    y = torch.where(
        (torch.rand(x.shape, generator=draw) < 0.5) & (torch.arange(96) % light == light - 1)[:, None], x, IGNORED
    )
    y[light - 1 :: light, 0] = x[light - 1 :: light, 0]

    def objective(model: nn.Module, batch: cordee.Batch) -> Tensor:
        return nn.functional.cross_entropy(model(batch.x).logits.flatten(0, 1), batch.y.flatten(), ignore_index=IGNORED)

    return cordee.Job(
        model=lambda: cut_models.make(kind, cut_models.WORDS).double(),
        objective=objective,
        weigh=lambda batch: float((batch.y != IGNORED).sum()),
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-3),
        data=(x, y),
        batch=24,
        epochs=None,
        shuffle="none",
        clip=0.5,
        stop=Stop(steps=6),
    )
