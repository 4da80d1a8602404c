"""Parameters, buffers and optimizer states of complex numbers, in both precisions, beside real ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import cordee
from cordee.train.job import Save, Stop


class Waves(nn.Module):
    """A filter in the frequencies of an image, as in Fourier neural operators."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.filter = nn.Parameter(torch.randn(33, 33, dtype=dtype, generator=generator) / 8)
        self.shift = nn.Parameter(torch.zeros((), dtype=dtype))
        self.last = nn.Linear(64, 10).double()
        self.register_buffer("phase", torch.polar(torch.ones(33), torch.arange(33) / 9).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        waves = torch.fft.rfft(x.double()).to(self.filter.dtype)
        passed = (waves * self.phase) @ self.filter + self.shift
        out: Tensor = self.last(torch.fft.irfft(passed.to(torch.complex128), n=64))
        return out


def job(
    dtype: str = "complex128",
    optimizer: str = "adam",
    stop_steps: int | None = None,
    start_from: str | None = None,
    clip: float | None = None,
) -> cordee.Job:
    optimizers = {
        "adam": lambda params: torch.optim.Adam(params, lr=3e-3),
        "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    }
    return cordee.Job(
        model=lambda: Waves(getattr(torch, dtype)),
        loss=nn.functional.cross_entropy,
        optimizer=optimizers[optimizer],
        data=cordee.data.digits(),
        batch=250,
        epochs=2,
        clip=clip,
        metrics={"accuracy": cordee.metrics.accuracy},
        stop=Stop(steps=stop_steps),
        save=Save(keep_best="loss"),
        start_from=start_from,
    )
