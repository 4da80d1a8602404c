"""A small net over a store of which two hosts hold half of the shards each; its two workers are as if on these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

import cordee
from cordee.group.lines import Lines

HOSTS = ("127.0.0.1", "127.0.0.2")


class Counts(cordee.Callback):
    """Writes down how many bytes came from each host."""

    def __init__(self, data: Any, log: str) -> None:
        self.data, self.log = data, log

    def on_end(self, session: Any) -> None:
        if self.log:
            given = self.data.train.store.bring.counters.by_holder
            away = sum(nbytes for place, nbytes in given.items() if not place.startswith(HOSTS[session.rank]))
            Path(f"{self.log}-{session.rank}").write_text(f"{away} {sum(given.values())}")


def job(store: str = "", token: str = "", log: str = "") -> cordee.Job:
    Lines.hosts = property(lambda lines: dict(enumerate(HOSTS)))  # type: ignore[assignment, method-assign]
    far = cordee.data.Cache(memory=0, disk=0, ahead=0)
    data = cordee.data.store(store, cache=far, token_file=token) if token else cordee.data.store(store)
    return cordee.Job(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 9)).double(),
        loss=lambda output, target: nn.functional.cross_entropy(output, target),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
        data=data,
        batch=12,
        epochs=1,
        preflight=False,
        callbacks=[Counts(data, log)],
    )
