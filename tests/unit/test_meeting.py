"""Hosts that wait for each other: how many have come, and what the coordinator tells them."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cordee.group.wire import Address, Connection, connect
from cordee.runtime import hosts
from cordee.runtime.coordinator.hub import Hub
from cordee.runtime.hosts import _await_hosts, _Link, _Patience, _place
from cordee.runtime.recorder import Recorder
from harness import DEADLINE_S

SETTINGS = {"settings": {"epochs": "40"}}


@pytest.fixture
def hub() -> Iterator[Hub]:
    """Of a run on three hosts, two workers on the first."""
    made = Hub(Address("127.0.0.1", 0, secrets.token_hex(32)), expected=0, nodes=3, workers_here=2, brief=SETTINGS)
    yield made
    made.close()


def come(hub: Hub, workers: int) -> tuple[Connection, dict[str, Any]]:
    return connect(hub.address, {"role": "node", "number": -1, "host": "there", "workers": workers})


def test_the_coordinator_says_how_many_hosts_are_here(hub: Hub, tmp_path: Path) -> None:
    said: list[str] = []
    turn = threading.Condition()

    def listen(event: dict[str, Any]) -> None:
        with turn:
            said.append(event["message"])
            turn.notify_all()

    def wait(word: str) -> None:
        with turn:
            assert turn.wait_for(lambda: any(word in one for one in said[-1:]), DEADLINE_S), said

    recorder = Recorder(tmp_path / "run", resume=False, listen=listen)
    totals: list[int] = []
    waiting = threading.Thread(target=lambda: totals.append(_await_hosts(hub, 3, recorder)))
    waiting.start()
    wait(": 1 of 3 hosts are here")
    second, welcome = come(hub, 4)
    assert welcome["brief"] == SETTINGS
    wait(": 2 of 3 hosts are here")
    second.close()
    wait(": 1 of 3 hosts are here")  # it left before the run began
    connections = [come(hub, 4)[0], come(hub, 1)[0]]
    waiting.join(DEADLINE_S)
    assert totals == [7]
    recorder.close()
    for one in connections:
        one.close()


def test_a_host_that_follows_says_so_too(hub: Hub) -> None:
    said: list[str] = []
    heard = threading.Event()

    def say(message: str) -> None:
        said.append(message)
        heard.set()

    patience = _Patience(say)
    link = _Link(hub.address, 4, "there", patience)
    assert link.brief == SETTINGS
    places: list[Any] = []
    waiting = threading.Thread(target=lambda: places.append(link.wait_assigned(patience)))
    waiting.start()
    assert heard.wait(DEADLINE_S)
    third, _ = come(hub, 1)
    waiting.join(DEADLINE_S)
    assert (places[0]["assign"], places[0]["total"]) == (2, 7)
    assert "2 of 3 hosts are here" in said[0]
    third.close()
    link.close()


def test_too_few_hosts(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "PATIENCE_S", 0.5)
    recorder = Recorder(tmp_path / "run", resume=False, listen=lambda event: None)
    with pytest.raises(hosts.RendezvousError, match="only 1 of 3 hosts came"):
        _await_hosts(hub, 3, recorder)
    recorder.close()


def test_which_workers_are_here() -> None:
    assert _place(1, 1, 2) == "worker 1 is on this host, one of 2"
    assert _place(2, 3, 5) == "workers 2 to 4 are on this host, of 5 in all"
