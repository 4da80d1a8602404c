"""A loop of one's own for `exact=true`, which looks at other data within a step: `pieces_loop.py [FAULT]`."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import cordee

fault = sys.argv[1] if len(sys.argv) > 1 else ""


class Net(nn.Module):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 40), nn.Dropout(0.3), nn.ReLU(), nn.Linear(40, 10))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if fault == "counting":
            self.seen += len(x)
        out: Tensor = self.body(x)
        return out


data = cordee.data.digits(validation=0.1)
with cordee.session(seed=3) as s:
    if fault == "threads":
        torch.set_num_threads(s.rank + 1)
    torch.manual_seed(0)
    model = s.prepare(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for batch in s.batches(data.train, batch=300, epochs=2):
        loss = nn.functional.cross_entropy(model(batch.x), batch.y)
        s.backward(loss / 2)
        s.backward(nn.functional.cross_entropy(model(batch.x), batch.y) / 2)
        if batch.step == 1:
            with torch.no_grad():
                for other in s.batches(data.validation, batch=50):
                    model(other.x)
        if s.step(optimizer, clip=1.0) and fault == "twice":
            s.backward(nn.functional.cross_entropy(model(batch.x), batch.y))
            s.step(optimizer)
