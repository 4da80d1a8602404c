"""A training loop in the user's own hands: `own_loop.py FOLDER`, alone or under `cordee run`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from cnn import Cnn
from torch import nn

import cordee
from cordee.train.session import stepper_of

folder = Path(sys.argv[1])
torch.manual_seed(0)
model = Cnn("float64", 0.1)
data = cordee.data.digits()
losses = []

with cordee.session(seed=3) as s:
    model = s.prepare(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for batch in s.batches(data.train, batch=101, epochs=2):
        s.backward(nn.functional.cross_entropy(model(batch.x), batch.y))
        if s.step(optimizer, clip=1.0):
            losses.append(s.last.loss)
    state = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
    ledger = dict(vars(stepper_of(s).ledger))
    (folder / f"{s.rank}.json").write_text(json.dumps({"losses": losses, "state": state, "ledger": ledger}))
