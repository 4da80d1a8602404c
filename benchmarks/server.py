"""Push and pull of 64 MB between a worker and a parameter server on this machine, beside a bare socket.

Push: gradients of 64 MB, which the server adds to its sum. Pull: an update by plain SGD, and the parameters back. Bare
socket: the same bytes to another process and back, into memory that is used again. All in one run, in turns; the
median of the ratios in pairs, and their range.

    python benchmarks/server.py [--rounds 15] [--megabytes 64]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import secrets
import socket
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from peers.machine import described
from torch import nn

from cordee.group.bulk import Link, Listener, dial
from cordee.group.messages import Holders, Holding, Place, Who
from cordee.group.wire import LOOPBACK, Address
from cordee.sync.server import rules
from cordee.sync.server.holder import Holder
from cordee.sync.server.shards import Shard

TOKEN = secrets.token_hex(32)
TENSORS = 16
RESULTS = Path(__file__).parent / "results" / "server.json"


def serve(pipe: Connection, number: int, token: str, tls: bool) -> None:
    """A server process: says where it listens, and is told the view."""
    torch.set_num_threads(1)
    listener = Listener(LOOPBACK, token, tls=tls, silence_s=60)
    who = Who("server", "here", number)

    def reach(place: Place) -> Link:
        return dial(Address(place.interface, place.port, token, tls), who, 60)

    holder = Holder(number, reach, lambda message: None, deadline_s=60, logs=None)
    listener.start(holder.serve)
    pipe.send(listener.port)
    holder.see(pipe.recv())
    pipe.recv()


def echo(pipe: Connection, size: int) -> None:
    """The bare socket: receive so many bytes and send as many back, again and again."""
    server = socket.create_server((LOOPBACK, 0))
    pipe.send(server.getsockname()[1])
    sock, _ = server.accept()
    memory = memoryview(bytearray(size))
    while True:
        at = 0
        while at < size:
            count = sock.recv_into(memory[at : at + (1 << 20)])
            if count == 0:
                return
            at += count
        sock.sendall(memory)


class Bare:
    """The same bytes over a bare socket."""

    def __init__(self, size: int) -> None:
        """Start the other process."""
        self.size, (ours, theirs) = size, mp.Pipe()
        self.process = mp.Process(target=echo, args=(theirs, size), daemon=True)
        self.process.start()
        self.sock = socket.create_connection((LOOPBACK, ours.recv()))
        self.memory = memoryview(bytearray(size))

    def turn(self) -> float:
        """Seconds for all bytes there and back."""
        began = time.perf_counter()
        self.sock.sendall(self.memory)
        at = 0
        while at < self.size:
            at += self.sock.recv_into(self.memory[at : at + (1 << 20)])
        return time.perf_counter() - began


class Served:
    """A worker beside one server, with or without its backup."""

    def __init__(self, size: int, *, backup: bool, tls: bool) -> None:
        """Start the server, and load it."""
        self.pipes, places = [], []
        for number in range(2 if backup else 1):
            ours, theirs = mp.Pipe()
            mp.Process(target=serve, args=(theirs, number, TOKEN, tls), daemon=True).start()
            places.append(Place(number, "here", LOOPBACK, ours.recv()))
            self.pipes.append(ours)
        view = Holders(1, [Holding(*places)])
        for pipe in self.pipes:
            pipe.send(view)
        channel: Any = SimpleNamespace(
            holders=view,
            on_holders=[],
            address=Address(LOOPBACK, 0, TOKEN, tls),
            worker=0,
            name="worker 0",
            wait=lambda *_: time.sleep(0.01),
        )
        parameters = [nn.Parameter(torch.zeros(size // 4 // TENSORS)) for _ in range(TENSORS)]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        self.optimizer = torch.optim.SGD(parameters, lr=1e-3)
        self.shard, self.step = Shard(0, parameters, 0, channel, 60.0), 0
        self.shard.open().result()
        self.shard.load(self.optimizer, 0).result()

    def turn(self) -> float:
        """Seconds for a push, an update and a pull."""
        settings = rules.settings_of(self.optimizer)
        began = time.perf_counter()
        self.shard.complete(self.step, (1, 0), [0]).result()
        self.shard.apply(self.step, (1, 0), 1.0, settings).result()
        self.step += 1
        return time.perf_counter() - began


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--megabytes", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = options.megabytes * 10**6 // 64 * 64
    bare = Bare(size)
    rows = []
    for name, kind in {
        "plain": {"backup": False, "tls": False},
        "with a backup": {"backup": True, "tls": False},
        "TLS": {"backup": False, "tls": True},
        "TLS, with a backup": {"backup": True, "tls": True},
    }.items():
        served = Served(size, **kind)
        for one in (bare, served):
            one.turn(), one.turn()
        pairs = [(bare.turn(), served.turn()) for _ in range(options.rounds)]
        ratios = sorted(left / right for left, right in pairs)
        rows.append(
            {
                "server": name,
                "MB/s": round(2 * size / statistics.median(right for _, right in pairs) / 1e6),
                "bare MB/s": round(2 * size / statistics.median(left for left, _ in pairs) / 1e6),
                "share of a bare socket": f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            }
        )
        print(rows[-1], flush=True)
    RESULTS.write_text(json.dumps({**described(), **vars(options), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    mp.set_start_method("fork")
    main()
