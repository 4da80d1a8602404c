"""torch's own mesh and DTensor over the groups of a generation, before and after a loss: `meshes.py FOLDER DIES`.

The worker DIES kills itself while the others wait for it in a collective of torch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch

import cordee
from cordee.train.session import stepper_of

folder, dies = Path(sys.argv[1]), int(sys.argv[2])
x, y = torch.arange(60.0).reshape(12, 5), torch.arange(35.0).reshape(5, 7)

with cordee.session() as s:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    team, told = stepper_of(s).team, []

    def product() -> float:
        """How far a product of matrices over the mesh is from one process."""
        mesh = team.lines.device_mesh()["replica"]
        rows = distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None)
        result = rows @ distribute_tensor(y, mesh, [Replicate()], src_data_rank=None)
        return float((result.full_tensor() - x @ y).abs().max())

    told += [product(), product()]
    if team.membership.worker == dies:
        os.kill(os.getpid(), signal.SIGKILL)
    released = False
    try:
        while True:
            product()
    except RuntimeError:
        released = True
    total = torch.ones(1)
    while not team.agree([total]):
        total = torch.ones(1)
    told += [product(), product()]
    about = {"errors": told, "released": released, "total": float(total), "size": team.lines.device_mesh().size()}
    (folder / f"{team.membership.worker}.json").write_text(json.dumps(about))
