"""What links between hosts really carry, one by one and in a sum over all hosts: `link_rates.py FILE`."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

import torch

import cordee
from cordee.group.links import measure
from cordee.group.team import Team
from cordee.train.session import stepper_of

ENOUGH_S = 0.5
"""How long a transfer should take: what a link's token bucket lets pass at once is then little of it."""
SECONDS = 1.5
"""How long a sum of all hosts should take, so that it says how fast they add up."""
ROUNDS = 4
LEAST_BYTES, MOST_BYTES = 65_536, 134_217_728


def main(file: Path) -> None:
    """Measure all links, and sums of all hosts; the first worker writes the results."""
    with cordee.session() as current:
        team = stepper_of(current).team
        links = measure(team, socket.gethostname(), pairs=True, enough_s=ENOUGH_S) or []
        slowest = min((mbit_s * 1e6 for _, _, mbit_s, _ in links), default=1e9)
        summed = _sums(team, slowest)
        if current.rank == 0:
            file.write_text(json.dumps({"links": links, "allreduce": summed}))


def _sums(team: Team, bit_s: float) -> dict[str, float]:
    """How fast each link is while all members add up: 2 (n - 1) / n of the bytes go over each of them, both ways."""
    part = 2 * (team.replicas - 1) / team.replicas
    size = int(min(max(bit_s / 8 * SECONDS / max(part, 1e-9), LEAST_BYTES), MOST_BYTES))
    tensor = torch.zeros(size // 4)
    spent = []
    for _ in range(ROUNDS + 1):  # the first one fills the buffers on the way
        began = time.perf_counter()
        while not team.agree([tensor]):
            pass
        spent.append(time.perf_counter() - began)
    seconds = min(spent[1:])  # others may have been using the processor
    return {"bytes": size, "seconds": round(seconds, 4), "mbit_s": round(part * size * 8 / seconds / 1e6, 3)}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
