"""Products of matrices over the workers of a session, of which one may be lost: `products.py FOLDER [LOST]`."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch

import cordee
from cordee.core.world import World

rank = World.from_env().rank
draw = torch.Generator().manual_seed(0)
a = torch.randn(7, 10, generator=draw).double().requires_grad_()
b = torch.randn(10, 5, generator=draw).double().requires_grad_()
found: dict[str, float] = {}
refused: list[str] = []
with cordee.session() as s:
    for cut in ("columns", "rows", "blocks"):
        if cut == "rows" and len(sys.argv) > 2 and rank == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        made = cordee.split.matmul(a, b, cut=cut)
        torch.testing.assert_close(made.value, a @ b, rtol=0, atol=1e-13)
        gradients = torch.autograd.grad(made.value.square().sum(), (a, b))
        expected = torch.autograd.grad((a @ b).square().sum(), (a, b))
        torch.testing.assert_close(gradients, expected, rtol=1e-12, atol=1e-12)
        found[cut] = made.bytes_sent
    try:
        cordee.split.matmul(a, b, cut="rows" if s.rank else "columns")
    except cordee.errors.UsageError as error:
        refused.append(str(error))
    Path(sys.argv[1], f"{rank}.json").write_text(json.dumps({"bytes": found, "refused": refused, "size": s.size}))
