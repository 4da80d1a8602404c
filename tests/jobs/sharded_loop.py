"""A loop in the user's own hands over two models whose state is sharded, with two updates per batch.

`sharded_loop.py FOLDER`; both can be cut into slices too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn

import cordee

data = cordee.data.digits()
torch.manual_seed(1)
with cordee.session() as s:
    body = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 17)).double()
    body = s.prepare(body, sample=torch.zeros(2, 64).double())
    frozen = nn.Linear(17, 16).requires_grad_(False)
    head = nn.Sequential(nn.BatchNorm1d(17), frozen, nn.Tanh(), nn.Linear(16, 10)).double()
    head = s.prepare(head, sample=torch.zeros(2, 17).double())
    optimizers = [torch.optim.AdamW(body.parameters(), lr=1e-2)]
    optimizers.append(torch.optim.SGD([one for one in head.parameters() if one.requires_grad], lr=0.1, momentum=0.9))
    losses = []
    for batch in s.batches(data.train, batch=151, epochs=1):
        for optimizer in optimizers:
            s.backward(nn.functional.cross_entropy(head(body(batch.x.double())), batch.y))
            if not s.step(optimizer, clip=1.0):
                break
        else:
            assert s.last is not None
            losses.append(s.last.loss)
            with torch.no_grad():  # gathered for a pass that no backward pass follows
                head(body(batch.x.double()))
    outputs = cordee.predict(body, data.test.gather(range(20))["x"].double(), s)
    weights = {
        name: (one.full_tensor() if s.size > 1 else one).tolist()  # type: ignore[operator]
        for name, one in body.state_dict().items()
    }
    told = {"losses": losses, "outputs": outputs.tolist(), **weights}
    Path(sys.argv[1], f"{s.size}-{s.rank}.json").write_text(json.dumps(told))
