"""A loop in the user's own hands over a model that is cut over workers: `sliced_loop.py FOLDER named|found|neither`."""

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
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)).double()
    given = {
        "named": {"tensor_plan": {"0": "column", "2": "row"}},
        "found": {"sample": torch.zeros(2, 64).double()},
        "neither": {},
    }[sys.argv[2]]
    model = s.prepare(model, **given)
    assert s.size == 1 or model[0].weight.to_local().shape == (16, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for batch in s.batches(data.train, batch=150, epochs=1):
        s.backward(nn.functional.cross_entropy(model(batch.x.double()), batch.y))
        if s.step(optimizer, clip=1.0):
            assert s.last is not None
            losses.append(s.last.loss)
    Path(sys.argv[1], f"{s.size}-{s.rank}.json").write_text(json.dumps({"losses": losses}))
