"""A step with several updates, in which what was computed before the first is used after it.

`carried.py FOLDER LOOP [WORKER STEP UPDATE]`, alone or under `cordee run`. LOOP: `two` has two optimizers, `thrice`
makes three updates with one optimizer, `late` makes its second update from step 3 on. With WORKER, STEP and UPDATE that
worker kills itself in that step, after that update. In the place of the three: the acts of `instants.py`, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import instants
import torch
from torch import Tensor, nn

import cordee
from cordee.group.team import Team
from cordee.train.session import stepper_of

folder, how = Path(sys.argv[1]), sys.argv[2]
acts = sys.argv[3] if len(sys.argv) == 4 else ""
dies_at = tuple(map(int, sys.argv[3:6])) if len(sys.argv) == 6 else (-1, -1, -1)
instants.place(Team, folder, acts)
data = cordee.data.digits()
losses = []


class Tracking(nn.Module):
    """Centres what it is given by a mean of what it was given before."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()).double())
        self.body = nn.Linear(64, 24).double()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = torch.tanh(self.body(x) / self.calls)
        return out


torch.manual_seed(0)
first, second = Tracking(), nn.Linear(24, 10).double()
with cordee.session() as s:
    worker = stepper_of(s).team.membership.worker
    first, second = s.prepare(first), s.prepare(second)
    optimizers = [torch.optim.Adam(one.parameters(), lr=2e-3) for one in (first, second)]
    both = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1, momentum=0.9)

    def after(update: int) -> None:
        if dies_at == (worker, stepper_of(s).number, update):
            os.kill(os.getpid(), signal.SIGKILL)

    for batch in s.batches(data.train, batch=101, epochs=1):
        hidden = first(batch.x.double())
        if how == "thrice":
            for update in range(3):  # each of them with what was computed before the first
                s.backward(nn.functional.cross_entropy(second(hidden.detach() + first.body.bias), batch.y))
                done = s.step(both)
                if not done:
                    break
                after(update + 1)
        elif how == "late" and stepper_of(s).number < 3:
            s.backward(hidden.square().mean() + nn.functional.cross_entropy(second(hidden), batch.y))
            done = s.step(both)
        else:
            s.backward(hidden.square().mean())
            s.step(optimizers[0])
            after(1)
            s.backward(nn.functional.cross_entropy(second(hidden.detach()), batch.y))
            done = s.step(optimizers[1])
        if done:
            losses.append(s.last.loss)
    state = {f"{name}.{key}": one.tolist() for name, model in (("first", first), ("second", second))
             for key, one in model.state_dict().items()}  # fmt: skip
    ledger = dict(vars(stepper_of(s).ledger))
    (folder / f"{s.rank}.json").write_text(json.dumps({"losses": losses, "state": state, "ledger": ledger}))
