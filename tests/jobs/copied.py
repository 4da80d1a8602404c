"""A compiled model with BatchNorm and a copy of it (as for averaged weights): training one leaves the other alone."""

from __future__ import annotations

import copy

import torch
from torch import nn

import cordee

data = cordee.data.digits()
torch.manual_seed(0)
with cordee.session() as s:
    model = s.prepare(nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)))
    kept = copy.deepcopy(model).eval()
    probe = torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        before = kept(probe).clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for batch in s.batches(data.train, batch=250, epochs=1):
        s.backward(nn.functional.cross_entropy(model(batch.x), batch.y))
        s.step(optimizer)
    with torch.no_grad():
        assert torch.equal(kept(probe), before), "the copy has changed with the model"
