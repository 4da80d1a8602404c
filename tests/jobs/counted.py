"""Trains by several plans, one after the other, and counts what leaves this host: `counted.py FOLDER STEPS:PLAN...`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn

import cordee
from cordee.train.session import stepper_of

HEADERS = 66
"""Bytes of a packet that are no payload: Ethernet 14, IP 20, TCP with a stamp of time 32."""


def sent() -> int:
    """The payload that has left by the host's interface, as the kernel counts it.

    It counts a large packet before it is cut into those of the wire: one packet with one header.
    """
    lines = Path("/proc/net/dev").read_text().splitlines()
    counts = next(line for line in lines if line.strip().startswith("eth0:")).split(":")[1].split()
    return int(counts[8]) - HEADERS * int(counts[9])


def main(folder: Path, plans: list[str]) -> None:
    """Train by each plan; write down what this host has sent meanwhile, and which steps these were."""
    found, data = {}, cordee.data.digits().train
    for given in plans:
        steps, _, plan = given.partition(":")
        torch.manual_seed(0)
        with cordee.session(plan=plan) as session:
            team, before = stepper_of(session).team, sent()
            first = team.steps
            model = session.prepare(make())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for batch in session.batches(data, batch=64, epochs=99):
                session.backward(nn.functional.cross_entropy(model(batch.x), batch.y))
                session.step(optimizer)
                if team.steps - first >= int(steps):
                    break
            found[plan] = {"from": first, "to": team.steps, "sent": sent() - before}
            rank = session.rank
    (folder / f"sent-{rank}.json").write_text(json.dumps({"plans": found, "all": sent()}))


def make() -> nn.Module:
    """Parameters of 10 MB: gloo's own messages, some hundred bytes for each sum, do not matter beside them."""
    layers = (nn.Linear(64, 1536), nn.ReLU(), nn.Linear(1536, 1536), nn.ReLU(), nn.Linear(1536, 10))
    return nn.Sequential(nn.Flatten(), *layers)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
