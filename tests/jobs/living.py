"""A model whose forward pass changes buffers by its batch: `living.py FOLDER KIND [WORKER STEP]`.

With WORKER and STEP that worker kills itself in that step, after the forward pass.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import cordee
from cordee.train.session import stepper_of

folder, kind = Path(sys.argv[1]), sys.argv[2]
dies_at = tuple(map(int, sys.argv[3:5])) or (-1, -1)


class Centre(nn.Module):
    """Takes off a moving mean of what came, as DINO does with its teacher's output; counts which classes it saw."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(width).double())
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("largest", torch.zeros(width, dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        out = x - self.centre
        if self.training:
            with torch.no_grad():
                self.centre.data.mul_(0.9).add_(x.mean(0), alpha=0.1)  # which no version counter sees
                self.calls += 1
                self.largest += torch.bincount(x.argmax(1), minlength=x.shape[1])
        return out


class Codes(nn.Module):
    """A codebook that follows its batch: the ratio of two moving sums, which is no mean."""

    def __init__(self, width: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.register_buffer("codes", torch.randn(4, width, generator=draw).double())
        self.register_buffer("counts", torch.ones(4).double())
        self.register_buffer("sums", self.codes.clone())

    def forward(self, x: Tensor) -> Tensor:
        nearest = torch.cdist(x, self.codes).argmin(1)
        quantised = self.codes[nearest]
        if self.training:
            with torch.no_grad():
                chosen = nn.functional.one_hot(nearest, 4).double()
                self.counts.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
                self.sums.mul_(0.9).add_(chosen.T @ x, alpha=0.1)
                self.codes.copy_(self.sums / self.counts[:, None])
        return x + (quantised - x).detach()


torch.manual_seed(0)
middle: nn.Module
if kind == "instance":
    shape = nn.Unflatten(1, (4, 6))
    middle = nn.Sequential(shape, nn.InstanceNorm1d(4, track_running_stats=True).double(), nn.Flatten())
else:
    middle = Codes(24) if kind == "codes" else Centre(24)
if kind == "spectral":
    middle = nn.utils.parametrizations.spectral_norm(nn.Linear(24, 24).double())
model = nn.Sequential(nn.Linear(64, 24).double(), middle, nn.ReLU(), nn.Linear(24, 10).double())
losses = []
with cordee.session() as s:
    worker = stepper_of(s).team.membership.worker
    model = s.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in s.batches(cordee.data.digits().train, batch=50, epochs=1):
        loss = nn.functional.cross_entropy(model(batch.x.double()), batch.y)
        if dies_at == (worker, stepper_of(s).number):
            os.kill(os.getpid(), signal.SIGKILL)
        s.backward(loss)
        if s.step(optimizer):
            losses.append(s.last.loss)
    held = {**model.state_dict(), **dict(model.named_buffers())}
    state = {name: tensor.tolist() for name, tensor in held.items()}
    ledger = dict(vars(stepper_of(s).ledger))
    (folder / f"{s.rank}.json").write_text(json.dumps({"losses": losses, "state": state, "ledger": ledger}))
