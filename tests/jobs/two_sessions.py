"""A model that is trained in two loops, one after the other: `two_sessions.py FOLDER HOW [WORKER]`.

HOW: `new` makes a second optimizer, `same` keeps it, `twice` prepares the model twice in each session, `left` leaves
the first loop between backward() and step(); so does `again`, where both loops are in one session. WORKER kills itself
in the second loop.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from cnn import Cnn
from mlp import Mlp
from torch import nn

import cordee
from cordee.train.session import stepper_of

folder, how = Path(sys.argv[1]), sys.argv[2]
dies = int(sys.argv[3]) if len(sys.argv) > 3 else -1
torch.manual_seed(0)
leaves = how in ("left", "again")
model = Mlp("float64", "") if leaves else Cnn("float64", 0.1)  # nothing in the Mlp waits for the other workers
train = cordee.data.digits().train
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
losses, ledgers, hooks = [], [], []
s = cordee.session(seed=3)
for turn in range(2):
    if turn == 1 and how != "again":
        s = cordee.session(seed=4)
    last = turn == 1 or how != "again"
    with s if last else contextlib.nullcontext():
        if turn == 0 or how != "again":
            model = s.prepare(model)
        if how == "twice":
            model = s.prepare(model)
        if how == "new":
            optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for number, batch in enumerate(s.batches(train, batch=101, epochs=1)):
            if turn == 1 and number == 5 and stepper_of(s).team.membership.worker == dies:
                os.kill(os.getpid(), signal.SIGKILL)
            leaving = leaves and turn == 0 and number == 7
            if leaving and s.rank == 1:
                time.sleep(0.3)  # the others are in the next loop when this one sends its gradients
            s.backward(nn.functional.cross_entropy(model(batch.x), batch.y))
            if leaving:
                optimizer.zero_grad()
                break
            if s.step(optimizer):
                losses.append(s.last.loss)
        ledgers.append(dict(vars(stepper_of(s).ledger)))
        state = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
        rank = s.rank
    hooks.append(max(len(one._post_accumulate_grad_hooks or ()) for one in model.parameters()))
told = {"losses": losses, "ledgers": ledgers, "state": state, "hooks": hooks}
(folder / f"{rank}.json").write_text(json.dumps(told))
