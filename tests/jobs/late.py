"""Sums that come to their end now just before, now just after the moment in which a worker looks up from its wait."""

from __future__ import annotations

import random
import time

import torch

import cordee
from cordee.group.transport import gloo
from cordee.train.session import stepper_of

gloo.LOOK_S = 0.001  # many looks: each is a chance for a sum to end between a timeout and what follows it

with cordee.session() as s:
    draw = random.Random(s.rank)
    for turn in range(400):
        time.sleep(draw.random() * 0.004)
        total = torch.full((5,), float(turn + s.rank))
        assert stepper_of(s).team.agree([total]) and float(total[0]) == 2 * turn + 1
    assert stepper_of(s).team.membership.generation == 1, "the workers regrouped, though none was lost"
