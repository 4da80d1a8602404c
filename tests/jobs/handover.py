"""An agreement whose result reaches worker 0 but not worker 1, because worker 2 dies: `handover.py FOLDER`"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

import cordee

folder = Path(sys.argv[1])

with cordee.session() as s:
    rope = s.rope
    first = torch.full((5,), (rope.worker + 1) * (1 + 1j))  # complex: gloo has no such type
    if rope.worker == 1:
        work = rope.start_sum(first)
        assert rope.wait(work)
        first.fill_(-1.0)  # as if the wire had been cut before the result came
        agreed = rope.settle([None], [first])
    else:
        agreed = rope.agree([first])
    if rope.worker == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        second = torch.full((3,), 10.0 * (rope.worker + 1))
        if rope.agree([second]):
            break
    members = ",".join(map(str, rope.members))
    words = [agreed, rope.position, rope.generation, members, float(first.mean().real), float(second.mean())]
    (folder / str(rope.worker)).write_text(" ".join(map(str, words)))
