"""A script that predicts: the model tells which sample it was given. `python predict.py FOLDER`"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import cordee
from cordee.train.evaluate import predict

folder = Path(sys.argv[1])
seen: list[float] = []


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        seen.extend(x[:, 0].tolist())
        return torch.stack([x[:, 0], torch.sin(x[:, 0])], 1)


with cordee.session() as s:
    numbers = np.arange(1003, dtype=np.float64)[:, None]
    outputs = predict(s.prepare(Model()), numbers, s, batch=97)
    np.save(folder / f"{s.rank}.npy", outputs.numpy())
    np.save(folder / f"seen-{s.rank}.npy", np.asarray(seen))
