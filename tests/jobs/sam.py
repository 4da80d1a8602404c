"""Sharpness-aware minimisation as two updates of one step: `sam.py FOLDER [WORKER STEP]`."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import cordee
from cordee.train.session import stepper_of

folder = Path(sys.argv[1])
dies_at = tuple(map(int, sys.argv[2:4])) or (-1, -1)
losses = []


class Climb(torch.optim.Optimizer):
    """Moves parameters up along the global gradient, and back again."""

    def __init__(self, params: Any, rho: float = 0.05) -> None:
        super().__init__(params, {"rho": rho})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in params])
        self.moves = [(p, p.grad * (self.defaults["rho"] / (norm + 1e-12))) for p in params]
        for parameter, move in self.moves:
            parameter.add_(move)

    @torch.no_grad()
    def undo(self, *_: Any) -> None:
        for parameter, move in self.moves:
            parameter.sub_(move)


torch.manual_seed(0)
with cordee.session() as s:
    worker = stepper_of(s).team.membership.worker
    model = s.prepare(nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)).double())
    climb = Climb(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.register_step_pre_hook(climb.undo)
    for batch in s.batches(cordee.data.digits().train, batch=101):
        x = batch.x.double()
        s.backward(nn.functional.cross_entropy(model(x), batch.y))
        s.step(climb)
        if dies_at == (worker, stepper_of(s).number):
            os.kill(os.getpid(), signal.SIGKILL)
        s.backward(nn.functional.cross_entropy(model(x), batch.y))
        if s.step(optimizer):
            losses.append(s.last.loss)
    state = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
    ledger = dict(vars(stepper_of(s).ledger))
    (folder / f"{s.rank}.json").write_text(json.dumps({"losses": losses, "state": state, "ledger": ledger}))
