"""Hosts that wait for each other: how many have come, and what the coordinator tells them."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cordee.core.errors import CoordinatorLost, CordeeError, Interrupted, RendezvousError
from cordee.core.interrupts import Interrupts
from cordee.core.plan import Plan
from cordee.core.world import World
from cordee.group.messages import Farewell, Lose, Seat, Welcome, Who
from cordee.group.wire import Address, Connection, connect
from cordee.runtime.coordinator.hub import Hub
from cordee.runtime.engines import hosts
from cordee.runtime.engines.hosts import Follower, HostsEngine
from cordee.runtime.engines.seam import seats
from cordee.runtime.keeping import Kept
from cordee.runtime.launch import Launch
from cordee.runtime.notices import Interrupt, Notices
from cordee.runtime.rendezvous import await_hosts
from cordee.runtime.spec import Target, WorkerSpec
from harness import DEADLINE_S, until

SETTINGS = {"epochs": "40"}


@pytest.fixture
def hub() -> Iterator[Hub]:
    """Of a run on three hosts, two workers on the first."""
    made = Hub(Address("127.0.0.1", 0, secrets.token_hex(32)), expected=2, nodes=3, settings=SETTINGS)
    yield made
    made.close()


def come(hub: Hub, workers: int) -> tuple[Connection, Welcome]:
    return connect(hub.address, Who("node", "there", workers=workers))


def test_the_coordinator_says_how_many_hosts_are_here(hub: Hub) -> None:
    said: list[str] = []
    turn = threading.Condition()

    def say(message: str) -> None:
        with turn:
            said.append(message)
            turn.notify_all()

    def wait(word: str) -> None:
        with turn:
            assert turn.wait_for(lambda: any(word in one for one in said[-1:]), DEADLINE_S), said

    totals: list[list[int]] = []
    waiting = threading.Thread(target=lambda: totals.append(await_hosts(hub, 3, say)))
    waiting.start()
    wait(": 1 of 3 hosts are here")
    second, welcome = come(hub, 4)
    assert welcome.settings == SETTINGS
    wait(": 2 of 3 hosts are here")
    second.close()
    wait(": 1 of 3 hosts are here")  # it left before the run began
    connections = [come(hub, 4)[0], come(hub, 1)[0]]
    waiting.join(DEADLINE_S)
    assert sorted(totals[0][1:]) == [1, 4] and totals[0][0] == 2
    for one in connections:
        one.close()


class Workers:
    """In the place of the engine of a host: what it was told."""

    def __init__(self, notices: Notices, spec_of: Callable[[Seat], WorkerSpec], *more: Any) -> None:
        self.notices, self.spec_of = notices, spec_of
        self.specs: list[WorkerSpec] = []

    def start(self, seats: Iterable[Seat]) -> None:
        self.specs += map(self.spec_of, seats)

    def look(self) -> None:
        pass

    def wait(self, seconds: float) -> bool:
        return True

    def how_it_ended(self, worker: int) -> None:
        pass

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_host_that_follows_starts_its_workers_when_all_have_come(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "engine_for", lambda former, notices, spec_of, given: Workers(notices, spec_of))
    monkeypatch.setattr(socket, "gethostname", lambda: "here")  # which comes before `there`
    said: list[str] = []
    launch = Launch(Target("job", "job.py"), 4, Plan(), tmp_path)
    follower = Follower(launch, hub.address, said.append, None, Kept(wanted=False))
    ended: list[CordeeError] = []

    def watch() -> None:
        try:
            follower.watch(Interrupts())
        except CordeeError as error:
            ended.append(error)

    watching = threading.Thread(target=watch)
    watching.start()
    until(lambda: said)
    assert "2 of 3 hosts are here" in said[0]
    third, _ = come(hub, 1)
    coordinator = Workers(hub.notices, lambda seat: seat)  # type: ignore[arg-type,return-value]
    until(lambda: hub.hosts.order)
    engine = HostsEngine(coordinator, hub, None)  # type: ignore[arg-type]
    engine.start(seats([2, 4, 1]))
    assert [seat.worker for seat in coordinator.specs] == [0, 1]
    specs = follower.engine.specs  # type: ignore[attr-defined]
    until(lambda: len(specs) == 4)
    assert said[-1] == "on this host, of 7 workers in all: 2, 3, 4, 5"
    assert [spec.worker for spec in specs] == [2, 3, 4, 5]
    assert [World.from_env(spec.environment).node for spec in specs] == [1] * 4
    assert {spec.target.settings["epochs"] for spec in specs} == {"40"}  # which the coordinator said
    follower.engine.notices.put((4, Lose(4, "killed by SIGKILL")))  # type: ignore[attr-defined]
    until(lambda: hub.roster.lost)
    assert hub.roster.lost == ((4, "killed by SIGKILL"),)
    third.close()
    hub.close()
    watching.join(DEADLINE_S)
    assert [type(error) for error in ended] == [CoordinatorLost]


@pytest.mark.parametrize("second", [True, False])
def test_a_signal_to_a_host_that_follows(second: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator is asked to stop the run, once; a second signal ends the workers of that host at once."""
    hub = Hub(Address("127.0.0.1", 0, secrets.token_hex(32)), expected=1, nodes=2)
    monkeypatch.setattr(hosts, "engine_for", lambda former, notices, spec_of, given: Workers(notices, spec_of))
    said: list[str] = []
    launch = Launch(Target("job", "job.py"), 1, Plan(), tmp_path)
    follower = Follower(launch, hub.address, said.append, None, Kept(wanted=False))
    ended: list[CordeeError] = []
    signals = Interrupts()

    def watch() -> None:
        try:
            follower.watch(signals)
        except CordeeError as error:
            ended.append(error)

    watching = threading.Thread(target=watch)
    watching.start()
    until(lambda: hub.hosts.order)
    HostsEngine(Workers(hub.notices, lambda seat: seat), hub, None).start(seats([1, 1]))  # type: ignore[arg-type,return-value]
    until(lambda: follower.engine.specs)  # type: ignore[attr-defined]
    signals.count = 1
    while not isinstance(notice := hub.notices.get(timeout=DEADLINE_S)[1], Interrupt):
        pass
    assert notice.host == socket.gethostname()
    until(lambda: "once more to end the workers of this host" in said[-1])
    assert not ended
    if second:
        signals.count = 2
    else:
        hub.ask_to_stop("interrupted")
        hub._server.call(hub._server.tell_all, Farewell())
    watching.join(DEADLINE_S)
    hub.close()
    (error,) = ended
    expected = "the workers of this host were ended" if second else "the run was ended: stopped after a step"
    assert isinstance(error, Interrupted) and expected in str(error)
    assert not [one for _, one in iter_notices(hub) if isinstance(one, Interrupt)]


def iter_notices(hub: Hub) -> Iterator[tuple[int, object]]:
    """What the hub has still to tell."""
    while not hub.notices.empty():
        yield hub.notices.get()


def test_too_few_hosts(hub: Hub) -> None:
    with pytest.raises(RendezvousError, match="only 1 of 3 hosts came"):
        await_hosts(hub, 3, lambda message: None, (0.5, "x"))  # type: ignore[arg-type]
