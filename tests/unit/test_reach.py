"""Hosts that do not reach each other: how that is found out, and what the coordinator does about it."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator

import pytest

from cordee.core.events import WarningEvent
from cordee.group import reach
from cordee.group.messages import Break, Evicted, Message, Unreached, Who
from cordee.group.reach import Contact, Lookout, why_unreachable
from cordee.group.wire import Address, Connection, connect
from cordee.runtime.coordinator.hub import Hub
from cordee.runtime.notices import Lost
from harness import DEADLINE_S, free_port, until


@pytest.fixture
def full() -> Iterator[int]:
    """A port whose queue of connections is full: the kernel drops what more comes, as a firewall does."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        clients = [socket.socket() for _ in range(4)]
        for one in clients:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        yield port
        for one in clients:
            one.close()


def test_a_host_that_answers_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert why_unreachable("127.0.0.1", listener.getsockname()[1], DEADLINE_S, answering=True) == ""
    port = free_port()  # a refusal is an answer: where nobody listens any more
    assert why_unreachable("127.0.0.1", port, DEADLINE_S, answering=False) == ""
    assert why_unreachable("127.0.0.1", port, DEADLINE_S, answering=True) == "Connection refused"


def test_a_host_that_does_not_answer(full: int) -> None:
    assert why_unreachable("127.0.0.1", full, 0.7, answering=False) == "no answer within 0.7 s"
    assert why_unreachable("255.255.255.255", 9, 0.1, answering=False) == "Network is unreachable"


def test_a_lookout_reports_once_and_only_who_is_out_of_reach(full: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "REACH_S", 0.2)
    monkeypatch.setattr(reach, "SECOND_S", 0.0)
    reports: list[tuple[int, str]] = []
    places = [Contact(4, "worker 4 on b", "127.0.0.1", free_port()), Contact(7, "worker 7 on c", "127.0.0.1", full)]
    lookout = Lookout(places, lambda place, reason: reports.append((place.worker, reason)))
    until(lambda: [lookout.look()] and reports)
    until(lambda: not lookout._trying)
    for _ in range(4 * reach.LOOKS):
        lookout.look()
        until(lambda: not lookout._trying)
    assert reports == [(7, "no answer within 0.2 s")]


class Launched:
    """A launcher and its workers, as the coordinator sees them."""

    def __init__(self, hub: Hub, name: str, workers: int) -> None:
        self.hub, self.name, self.count = hub, name, workers
        self.launcher = self._open(Who("node", name, workers=workers))
        self.workers: dict[int, Connection] = {}

    def _open(self, who: Who) -> Connection:
        return connect(self.hub.address, who)[0]

    def begin(self, first: int) -> None:
        for number in range(first, first + self.count):
            self.workers[number] = self._open(Who("worker", self.name, number))


def heard(connection: Connection, kind: type[Message]) -> Message:
    """The next message of this kind."""
    while not isinstance(message := connection.receive(), kind):
        assert message is not None
    return message


def test_one_of_two_hosts_is_evicted() -> None:
    """Both report the other; the one with fewer workers goes, and both it and the rest are told why."""
    hub = Hub(Address("127.0.0.1", 0, secrets.token_hex(32)), expected=1, nodes=3)
    b = Launched(hub, "b", 2)
    until(lambda: len(hub.hosts.workers) == 2)
    c = Launched(hub, "c", 1)
    until(lambda: hub.hosts.order)
    b.begin(1)
    c.begin(3)
    until(lambda: hub.roster.alive == {1, 2, 3})
    b.workers[1].send(Unreached(3, "no answer within 4 s"))
    c.workers[3].send(Unreached(1, "no answer within 4 s"))
    told = heard(c.launcher, Evicted)
    assert told == Evicted("it does not reach worker 1 on b (no answer within 4 s)")
    assert heard(c.workers[3], Evicted) == Evicted("its host c was evicted: " + told.reason)
    assert heard(b.workers[1], Break) == Break(0, 3)
    until(lambda: hub.roster.alive == {1, 2})
    warnings, losses = [], []
    while not losses:
        worker, notice = hub.notices.get(timeout=DEADLINE_S)
        if isinstance(notice, WarningEvent):
            warnings.append(notice.message)
        elif isinstance(notice, Lost):
            losses.append((worker, notice.host, notice.with_host))
    hub.close()
    assert losses == [(3, "c", True)]
    assert len(warnings) == 1 and "worker 1 on b and worker 3 on c do not reach each other" in warnings[0]
    assert "The host of worker 3 on c is evicted" in warnings[0]


def test_under_another_launcher_the_pair_is_named_and_nobody_evicted() -> None:
    hub = Hub(Address("127.0.0.1", 0, secrets.token_hex(32)), expected=2)
    workers = [connect(hub.address, Who("worker", host, number))[0] for number, host in enumerate("ab")]
    until(lambda: hub.roster.alive == {0, 1})
    workers[0].send(Unreached(1, "no answer within 4 s"))
    while not isinstance(notice := hub.notices.get(timeout=DEADLINE_S)[1], WarningEvent):
        pass
    hub.close()
    assert "worker 0 on a and worker 1 on b do not reach each other" in notice.message
    assert "The run waits" in notice.message and not hub.roster.lost
