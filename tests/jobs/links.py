"""Measure the links between members that take themselves for hosts: `links.py RING|ALL FOLDER [DIES] HOST HOST ...`.

DIES is RANK@COUNT: the member of this rank kills itself when it sends for the COUNT-th time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import cordee
from cordee.group import links
from cordee.train.session import stepper_of

which, folder, *names = sys.argv[1:]
dies, at = map(int, names.pop(0).split("@")) if "@" in names[0] else (-1, 0)


with cordee.session() as s:
    team, rank, sent = stepper_of(s).team, s.rank, 0
    lane_of = links._lane

    class Counted:
        """A connection that counts what is sent."""

        def __init__(self, lane: Any) -> None:
            self.lane, self.receive = lane, lane.receive

        def send(self, tensor: torch.Tensor, target: int, tag: int) -> Any:
            global sent
            sent += 1
            if (rank, sent) == (dies, at):
                os.kill(os.getpid(), signal.SIGKILL)
            return self.lane.send(tensor, target, tag)

    links._lane = lambda *which: Counted(lane_of(*which))
    found = links.measure(team, names[rank], pairs=which == "ALL", enough_s=0.01)
    total = torch.ones(3)
    while not team.agree([total]):
        total = torch.ones(3)
    about = {"links": found, "total": total.tolist(), "members": list(team.membership.members), "sent": sent}
    Path(folder, f"{rank if found is not None else team.membership.worker}.json").write_text(json.dumps(about))
