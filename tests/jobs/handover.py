"""An agreement whose result reaches worker 0 but not worker 1, because worker 2 dies: `handover.py FOLDER`"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

import cordee
from cordee.group.comm import NEVER
from cordee.train.session import stepper_of

folder = Path(sys.argv[1])

with cordee.session() as s:
    team = stepper_of(s).team
    first = torch.full((5,), (team.membership.worker + 1) * (1 + 1j))  # complex: gloo has no such type
    if team.membership.worker == 1:
        assert team.sums.sum(first).wait()
        first.fill_(-1.0)  # as if the wire had been cut before the result came
        agreed = team.settle([NEVER], [first])
    else:
        agreed = team.agree([first])
    if team.membership.worker == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        second = torch.full((3,), 10.0 * (team.membership.worker + 1))
        if team.agree([second]):
            break
    members = ",".join(map(str, team.membership.members))
    words = [agreed, team.position, team.membership.generation, members, float(first.mean().real), float(second.mean())]
    (folder / str(team.membership.worker)).write_text(" ".join(map(str, words)))
