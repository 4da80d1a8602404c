"""Two models and two optimizers: `gan.py FOLDER [WORKER STEP]`, alone or under `cordee run`.

With WORKER and STEP that worker kills itself between the two updates of that step.
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

folder = Path(sys.argv[1])
dies_at = tuple(map(int, sys.argv[2:4])) or (-1, -1)
torch.manual_seed(0)
generator = nn.Sequential(
    nn.Linear(16, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid()
).double()
critic = nn.Sequential(nn.Linear(64, 32, bias=False), nn.BatchNorm1d(32), nn.LeakyReLU(0.2), nn.Linear(32, 1)).double()
judge = nn.functional.binary_cross_entropy_with_logits
data = cordee.data.digits()
losses = []


def verdict(out: Tensor, real: bool) -> Tensor:
    return judge(out, torch.full_like(out, float(real)))


with cordee.session() as s:
    worker = stepper_of(s).team.membership.worker
    generator, critic = s.prepare(generator), s.prepare(critic)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-3)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-3)
    for batch in s.batches(data.train, batch=101, epochs=1):
        real = batch.x.double()
        fake = generator(real[:, 24:40] - 0.5)  # the noise of a sample is its own, so that nobody draws another
        s.backward(verdict(critic(real), True) + verdict(critic(fake.detach()), False))
        s.step(critic_optimizer)
        if dies_at == (worker, stepper_of(s).number):
            os.kill(os.getpid(), signal.SIGKILL)
        s.backward(verdict(critic(fake), True))
        if s.step(generator_optimizer):
            losses.append(s.last.loss)
        critic_optimizer.zero_grad()
    both = {"generator": generator.state_dict(), "critic": critic.state_dict()}
    state = {f"{name}.{key}": tensor.tolist() for name, one in both.items() for key, tensor in one.items()}
    ledger = dict(vars(stepper_of(s).ledger))
    (folder / f"{s.rank}.json").write_text(json.dumps({"losses": losses, "state": state, "ledger": ledger}))
