"""Predictions in which workers die at exact places: `predicting.py FOLDER ACTS`; see `instants.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import instants
import numpy as np
import torch
from torch import nn

import cordee
from cordee.group.team import Team
from cordee.train.evaluate import predict
from cordee.train.session import stepper_of

folder, acts = Path(sys.argv[1]), sys.argv[2]
instants.place(Team, folder, acts)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
with cordee.session() as s:
    numbers = np.arange(1003, dtype=np.float64)[:, None] / np.array([7.0, 100.0, 1000.0])
    outputs = predict(s.prepare(model), numbers, s, batch=97)
    np.save(folder / f"{stepper_of(s).team.membership.worker}.npy", outputs.numpy())
