"""Sums over all workers of a run, by several ways in turn: `summing.py FILE ROUNDS MEGABYTES...`.

`ring` is a plain ring of gloo, `ours` what Cordée does. Where that is no flat ring, `flat` is what `backend=gloo` does.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import cordee
from cordee.group.team import Team
from cordee.group.transport.gloo import Gloo
from cordee.train.session import stepper_of

IDLE_S = 0.3
"""Between two sums, as when a step is computed: TCP begins slowly again."""


def main(file: Path, rounds: int, sizes: list[float]) -> None:
    """Measure, and let the first worker write it down."""
    with cordee.session() as current:
        team = stepper_of(current).team
        who, ring = team.membership, Gloo(team.lines._interface)
        ring.form(who.store("plain ring"), who.rank, who.size, (who.deadline_s, who.deadline_s), lambda: who.broken)

        def plainly(tensor: Tensor) -> None:
            ring.sum(tensor).wait(lambda: who.broken)

        def ours(tensor: Tensor) -> None:
            assert team.sums.sum(tensor).wait()

        def flat(tensor: Tensor) -> None:
            work = team.sums.transports[-1].sum(tensor)
            assert work is not None
            work.wait(lambda: who.broken)

        ways = {"ring": plainly, "ours": ours} | ({"flat": flat} if len(team.sums.transports) > 1 else {})
        found = [sums(team, ways, int(one * 1e6), rounds) for one in sizes]
        if current.rank == 0:
            file.write_text(json.dumps(found))
        assert team.agree([torch.zeros(1)])
        ring.close(stuck=False)


def sums(team: Team, ways: dict[str, Callable[[Tensor], None]], nbytes: int, rounds: int) -> dict[str, object]:
    """For each way: the time of a sum, from when all are ready until the last one has it; bytes that left a host."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    sent: dict[str, list[int]] = {name: [] for name in ways}
    tensor = torch.ones(nbytes // 4)
    for number in range(rounds + 1):  # the first round fills the buffers on the way
        for name, way in ways.items() if number % 2 else reversed(ways.items()):
            tensor.fill_(1.0)
            time.sleep(IDLE_S)
            before = left()
            assert team.agree([torch.zeros(1)])
            began = time.perf_counter()
            way(tensor)
            seconds = time.perf_counter() - began
            assert bool((tensor == team.replicas).all()), f"{name} adds up wrongly"
            of_all = team.layers.gather(torch.tensor([seconds, left() - before], dtype=torch.float64)).wait()
            assert of_all is not None
            if number:
                taken[name].append(max(float(one[0]) for one in of_all))
                sent[name].append(int(max(float(one[1]) for one in of_all)))
    return {
        "megabytes": nbytes / 1e6,
        **{f"{name}_ms": round(1e3 * statistics.median(taken[name]), 2) for name in ways},
        **{f"{name}_sent": round(statistics.median(sent[name]) / nbytes, 3) for name in ways},
        "all_ms": {name: [round(1e3 * one, 2) for one in spent] for name, spent in taken.items()},
    }


def left() -> int:
    """Bytes that have left this host, as its link counts them."""
    counted = next(line for line in Path("/proc/net/dev").read_text().splitlines() if "eth0:" in line)
    return int(counted.split(":")[1].split()[8])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), [float(one) for one in sys.argv[3:]])
