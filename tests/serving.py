"""A parameter server within this process, and a worker's side of it."""

from __future__ import annotations

import secrets
import time
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from cordee.group.bulk import Link, Listener
from cordee.group.messages import Holders, Holding, Place
from cordee.group.wire import LOOPBACK, Address
from cordee.sync.server import rules
from cordee.sync.server.holder import Holder
from cordee.sync.server.shards import Shard


class Serving:
    """A server of one shard, within this process."""

    def __init__(self, *, tls: bool = False) -> None:
        self.token = secrets.token_hex(32)
        self.listener = Listener(LOOPBACK, self.token, tls=tls, silence_s=10)
        self.holder = holder = Holder(0, self._reach, lambda message: None, deadline_s=10, logs=None)
        place = Place(0, "here", LOOPBACK, self.listener.port)
        holder.see(view := Holders(1, [Holding(place)]))
        self.listener.start(holder.serve)
        self.address = Address(LOOPBACK, self.listener.port, self.token, tls)
        self.channel: Any = SimpleNamespace(
            holders=view,
            address=self.address,
            worker=0,
            name="worker 0",
            on_holders=[],
            wait=lambda *_: time.sleep(0.01),
        )
        self.parameter = nn.Parameter(torch.zeros(1000))
        self.optimizer = torch.optim.SGD([self.parameter], lr=1.0)
        self.shard, self.step = Shard(0, [self.parameter], 0, self.channel, 10.0), 0
        self.shard.open().result()
        self.shard.load(self.optimizer, 0).result()

    def _reach(self, place: Place) -> Link:
        raise AssertionError("there is no backup")

    def train(self) -> None:
        """One step of gradient 1: the server is well, and has counted all steps once."""
        self.parameter.grad = torch.ones(1000)
        self.shard.complete(self.step, (1, 0), [0]).result()
        self.shard.apply(self.step, (1, 0), 1.0, rules.settings_of(self.optimizer)).result()
        self.step += 1
        assert torch.equal(self.parameter.detach(), torch.full((1000,), -float(self.step)))
