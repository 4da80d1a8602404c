"""A worker that is killed when a message of its has come in part: gloo does not tell those who wait for the rest."""

from __future__ import annotations

import json
from pathlib import Path

from harness import run_script

SCRIPT = """
import json, os, signal, sys, threading
from pathlib import Path
import torch
import cordee
from cordee.train.session import stepper_of

with cordee.session() as s:
    team = stepper_of(s).team
    first, worker = s.rank == 0, team.membership.worker
    large = torch.full((75_000_000,), float(worker))
    ready = torch.zeros(1)
    team.agree([ready])
    if first:
        threading.Timer(0.03, os.kill, (os.getpid(), signal.SIGKILL)).start()
    while not team.share_from_first([large]):
        large.fill_(worker)  # some parts of it may have been given to all before
    total = torch.ones(2)
    while not team.agree([total]):
        total = torch.ones(2)
    said = {"members": list(team.membership.members), "ends": large[[0, -1]].tolist(), "total": total.tolist()}
    Path(sys.argv[1], f"{worker}.json").write_text(json.dumps(said))
"""


def test_the_others_go_on(warm: int, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    run = run_script(tmp_path / "script.py", tmp_path / "run", str(tmp_path), workers=3, plan="backend=gloo")
    said = [json.loads((tmp_path / f"{worker}.json").read_text()) for worker in (1, 2)]
    assert said == [{"members": [1, 2], "ends": [1.0, 1.0], "total": [2.0, 2.0]}] * 2
    assert [event["worker"] for event in run.of("failure")] == [0]
