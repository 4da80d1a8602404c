"""A few steps in a team of its own, whose hub is the test's: `forming.py FOLDER PORT TOKEN ACTS`; see `instants.py`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import instants
import torch
from torch import nn

import cordee
from cordee.group.channel import Channel
from cordee.group.team import Team
from cordee.group.transport import gloo
from cordee.group.wire import Address
from cordee.train.session import Session, stepper_of
from cordee.train.stepper import Stepper

folder, port, token, acts = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]


class Placed(Team):
    """Not the team of this process and its launcher."""


if len(sys.argv) > 5:
    gloo.FORM_S = float(sys.argv[5])
instants.place(Placed, folder, acts)
worker = cordee.World.from_env().rank
team = Placed(Channel(Address("127.0.0.1", port, token), worker, "here"), deadline_s=60.0)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10)).double()
with Session(Stepper(team, seed=3)) as s:
    model = s.prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in s.batches(cordee.data.digits().train, batch=101, epochs=1):
        s.backward(nn.functional.cross_entropy(model(batch.x.double()), batch.y))
        s.step(optimizer)
    state = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
    who = team.membership
    told = {
        "members": team.membership.members,
        "generation": team.membership.generation,
        "ledger": dict(vars(stepper_of(s).ledger)),
        "state": state,
    }
    (folder / f"told.{worker}").write_text(json.dumps(told))
