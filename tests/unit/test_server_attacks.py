"""What strangers and broken peers send to a parameter server is refused; it goes on serving the others."""

from __future__ import annotations

import contextlib
import datetime
import random
import resource
import secrets
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cordee.core.events import StrangerEvent
from cordee.group import bulk, tls
from cordee.group.bulk import Gone, Link, Listener, dial
from cordee.group.messages import Hello, Who
from cordee.group.strangers import PEER, Strangers
from cordee.group.tls import make_server_tls
from cordee.group.wire import LOOPBACK, Address, pack
from cordee.sync.server import messages as said
from serving import Serving

WORKER = Who("worker", "here", 0)


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def serving(request: pytest.FixtureRequest) -> Iterator[Serving]:
    found = Serving(tls=request.param)
    found.train()
    yield found
    found.train()
    found.shard.close()
    found.listener.close()


def test_without_the_token(serving: Serving) -> None:
    wrong = Address(LOOPBACK, serving.address.port, secrets.token_hex(32), serving.address.tls)
    with pytest.raises(Gone, match="token"):
        dial(wrong, WORKER, 5)


def test_an_expired_certificate(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    if not serving.address.tls:
        pytest.skip("without TLS there is no certificate")
    monkeypatch.setattr(tls, "make_server_tls", lambda: make_server_tls(datetime.timedelta(days=-2)))
    listener = Listener(LOOPBACK, serving.token, tls=True, silence_s=5)
    listener.start(lambda link, who: None)
    with pytest.raises(Gone, match="valid from"):
        dial(Address(LOOPBACK, listener.port, serving.token, True), WORKER, 5)
    listener.close()


def test_garbage_before_the_token(serving: Serving) -> None:
    draw = random.Random(0)
    for case in range(60):
        raw = draw.randbytes(draw.choice([1, 4, 5, 100, 5000]))
        if case % 3 == 1:
            raw = struct.pack("!I", 2**31) + raw  # a length that nothing of ours has
        if case % 3 == 2:
            raw = pack(Hello("x"))[: draw.randrange(1, 20)]  # cut short
        with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, serving.address.port)) as sock:
            sock.sendall(raw)
    serving.train()  # asserts that the server has counted every step once


def test_strangers_are_bounded(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [socket.create_connection((LOOPBACK, serving.address.port)) for _ in range(bulk.MOST_STRANGERS + 20)]
    serving.train()  # over a connection that has shown the token
    for sock in waiting:
        sock.close()


def fuzz(serving: Serving, frames: int, seed: int) -> None:
    """As a peer that has shown the token: messages with wrong fields, cut short, of the wrong kind, with junk."""
    draw, forms = random.Random(seed), [said.Form((1000,), "float32")]
    rule = said.Rule("torch.optim.sgd:SGD", {"lr": 1.0}, [said.Group([0], {"lr": 1.0})])

    def number() -> int:
        return draw.choice([-1, 0, 1, 7, 2**31, 2**63 - 1])

    def message() -> Any:
        attempt = (draw.choice([0, 1]), number())
        return draw.choice(
            [
                said.Open(number(), number(), [said.Form((number(),), draw.choice(["float32", "x", "Tensor"]))]),
                said.Load(0, draw.choice([0, 9]), number(), [said.Form((-3,), "float32")], rule, []),
                said.Push(draw.choice([0, 9]), draw.choice([-1, 0, serving.step]), attempt, 9, [number()]),
                said.Push(0, serving.step - 1, attempt, 9, [0], None, draw.choice(["int8", "topk", "powersgd", "x"])),
                said.Close(9, number(), attempt, 9, number(), [9]),
                said.Apply(0, serving.step - 1, attempt, 1.0, [{}]),
                said.Apply(0, serving.step + 5, attempt, 1.0, [{}]),
                said.Seal(0, serving.step, attempt, [0]),
                said.Copy(said.Apply(0, serving.step, attempt, 1.0, [])),
                said.Keep(number()),
                said.Fresh(number()),
            ]
        )

    link: Link | None = None
    assert forms
    for _ in range(frames):
        try:
            if link is None:
                link = dial(serving.address, WORKER, 0.5)
            raw = pack(message())
            if draw.random() < 0.3:
                raw = raw[: draw.randrange(len(raw))] + draw.randbytes(draw.randrange(8))
            link._sock.sendall(raw)
            if draw.random() < 0.3:
                link.close()
                link = None
        except OSError:
            link = None
    if link is not None:
        link.close()


def test_frames_of_a_broken_peer(serving: Serving) -> None:
    """They are on record, unless they are cut short: then a peer may have been lost."""
    told: list[StrangerEvent] = []
    serving.listener.strangers = Strangers("server 0", told.append)
    fuzz(serving, 500, 1)
    serving.train()
    deadline = time.monotonic() + 10.0
    while not told and time.monotonic() < deadline:
        time.sleep(0.01)
    assert {one.reason for one in told} == {PEER} and len(told) <= 3


def refused(serving: Serving, push: said.Push, payload: torch.Tensor) -> None:
    """A server hangs up on whoever sends this."""
    link = dial(serving.address, WORKER, 5)
    with pytest.raises(Gone):
        link.send(push, [payload])
        link.receive(said.decode)
    link.close()


def test_compressed_pushes_that_are_none(serving: Serving) -> None:
    """Wrong sizes, unknown codecs, parameters that were never loaded; the step that is open is not harmed by them."""
    link = dial(serving.address, WORKER, 5)
    link.send(said.Open(0, 7, [said.Form((1 << 40,), "float32")]))
    assert not link.receive(said.decode).loaded
    link.close()
    attempt, count = (1, 0), 10
    values = torch.ones(count).view(torch.uint8)
    for place in (1000, -1):
        places = torch.full((count,), place, dtype=torch.int32).view(torch.uint8)
        refused(serving, said.Push(0, serving.step, attempt, 9, [0], None, "topk"), torch.cat([places, values]))
    for codec in ("powersgd", "zip"):
        refused(serving, said.Push(0, serving.step, attempt, 9, [0], None, codec), values)
    refused(serving, said.Push(7, 0, attempt, 9, [0], None, "int8"), values)
    refused(serving, said.Push(7, 0, attempt, 9, [0]), values)


@pytest.mark.slow
def test_a_hundred_thousand_frames_in_bounded_memory(serving: Serving) -> None:
    fuzz(serving, 2000, 2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fuzz(serving, 100_000, 3)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "kilobytes"


def test_a_push_that_is_replayed_counts_once(serving: Serving) -> None:
    serving.parameter.grad = torch.ones(1000)
    link = dial(serving.address, WORKER, 5)
    gradient = torch.ones(1000)
    for _ in range(3):
        link.send(said.Push(0, serving.step, (1, 0), 0, [0]), [gradient])
    for _ in range(2):  # of a step that is over
        link.send(said.Push(0, serving.step - 1, (1, 0), 0, [0]), [gradient])
    link.send(said.Close(0, serving.step, (1, 0), 0, 1, [0]))
    assert isinstance(link.receive(said.decode), said.Norm)
    link.close()


def test_what_is_known_of_a_sum_after_a_worker_was_lost(serving: Serving) -> None:
    """An update that was made counts for any attempt; what is incomplete is not waited for."""
    serving.train()
    done, step = serving.step - 1, serving.step
    assert serving.shard.complete(done, (2, 0), [0, 1], over=True).result() == pytest.approx(1000.0)
    serving.parameter.grad = torch.ones(1000)
    assert serving.shard.complete(step, (1, 0), [0, 1], over=True).result() is None
    assert serving.shard.complete(step, (1, 0), [0], over=True).result() == pytest.approx(1000.0)
