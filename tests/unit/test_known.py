"""What a coordinator that is started anew makes of what its workers know."""

from __future__ import annotations

import contextlib
import itertools
import queue
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cordee.core.errors import RendezvousError
from cordee.core.events import WarningEvent
from cordee.group.messages import (
    Agreed,
    Back,
    Beat,
    Break,
    Clock,
    Evicted,
    Go,
    Holding,
    Place,
    Ready,
    Who,
    Without,
)
from cordee.group.wire import LOOPBACK, Address, Refused, connect
from cordee.runtime.coordinator.holders import Servers
from cordee.runtime.coordinator.hub import Hub
from cordee.runtime.coordinator.known import Known, Successor, first_known, rebuild, returned, unpack_known
from cordee.runtime.coordinator.lease import claim, is_shared
from cordee.runtime.coordinator.policy import next_generation, without_host
from cordee.runtime.coordinator.server import listen
from cordee.runtime.coordinator.state import Hosts, Roster
from cordee.runtime.notices import Lost, Minority, Superseded
from harness import DEADLINE_S, until

GO = Go(2, (0, 1, 3), 7, None)
ROSTER = Roster(3, 2, frozenset(GO.members), lost=((2, "killed"),), formed=True)
KNOWN = Known(ROSTER, Hosts(1, {0: 3}), term=2, go=GO, patience_s=5.0)


def test_it_is_the_same_value_after_a_way_as_text() -> None:
    servers = Servers.of(2, backups=True, workers=[2, 1]).came(Place(1_000_000, "a", "127.0.0.1", 1))
    hosts = Hosts(2, {0: 2, 1: 1}).numbered({1: "b"})
    known = Known(ROSTER, hosts, 3, go=GO, servers=servers, lost_servers=frozenset({1_000_003}), settings={"lr": "0.1"})
    assert unpack_known(known.packed()) == known
    assert known.servers.shards[0] == Holding(Place(1_000_000, "a", "127.0.0.1", 1))


def test_the_hosts_that_may_coordinate_next_and_where() -> None:
    """In their order, by their names; the first host has no door, and is none of them once another one coordinates."""
    hosts = (
        Hosts(3, {0: 2}).come(1, 1, None, ("10.0.0.3", 7)).come(2, 1, None, ("10.0.0.2", 8)).numbered({1: "c", 2: "b"})
    )
    known = Known(Roster(4), hosts)
    assert (known.heirs, known.doors()) == ((2, 1), [("10.0.0.2", 8), ("10.0.0.3", 7)])
    after = replace(known, home=2)
    assert (after.heirs, after.doors()) == ((1,), [("10.0.0.3", 7)])
    assert replace(after, hosts=hosts.lose(0)).heirs == (1,)


def test_of_those_that_are_ready_only_those_count_that_say_so_again() -> None:
    ready = ROSTER.lose(1, "killed").report(0, 7).report(3, 7)
    assert next_generation(ready) is not None
    after = Known(ready, KNOWN.hosts, go=GO).next_term(5)
    assert after.term == 2 and after.recorded == 5 and next_generation(after.roster) is None


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_order_in_which_they_come_back_is_of_no_account(order: tuple[int, ...]) -> None:
    """One knows of a generation that the launcher has not heard of, one of a loss in it, one of neither."""
    newer = Go(3, (0, 1), 8, None)
    reports = [(0, Back(newer, 3, [1])), (1, Back(newer, 2, [2, 3])), (3, Back(GO, 1, [2]))]
    known = Known(ROSTER.lose(3, "killed"), KNOWN.hosts, go=GO)
    found = rebuild(known, [reports[place] for place in order])
    assert (found.generation, found.alive, found.formed) == (3, {0}, False)
    assert {worker for worker, _ in found.lost} == {1, 2, 3}


def test_a_worker_that_knows_less_is_told() -> None:
    """Of the generation that it is a member of, and that it is over already."""
    roster = ROSTER.lose(1, "killed")
    _, _, words = returned(roster, GO, 0, Back(Go(1, (0, 1, 2, 3), 0, None), 1, [2]))
    assert words == [GO, Break(2, 1)]
    assert returned(roster, GO, 0, Back(GO, 2, [1, 2]))[2] == []
    assert returned(ROSTER, GO, 0, Back(GO, 1, [2]))[2] == []
    torn, _, words = returned(ROSTER, GO, 0, Back(GO, 2, [2]))
    assert not words and not torn.formed
    assert returned(torn, GO, 1, Back(GO, 1, [2]))[2] == [Break(2, None)]


def test_a_worker_of_an_old_generation_is_refused() -> None:
    stale = Back(Go(1, (0, 1, 2, 3), 0, None))
    for worker, roster in ((2, ROSTER), (4, ROSTER)):
        after, _, (word,) = returned(roster, GO, worker, stale)
        assert isinstance(word, Evicted) and after == roster


# ------------------------------------------------------------- over the wire


@pytest.fixture
def again() -> Iterator[Hub]:
    """The second coordinator of a run whose workers are to come back."""
    notices: queue.SimpleQueue[Any] = queue.SimpleQueue()
    address = Address(LOOPBACK, 0, secrets.token_hex(32))
    start = Successor(KNOWN, listen(LOOPBACK, 0), notices)
    made = Hub(address, expected=0, successor=start)
    yield made
    made.close()


def words_of(hub: Hub, kind: Any) -> Any:
    while not isinstance(found := hub.notices.get(timeout=DEADLINE_S)[1], kind):
        pass
    return found


def test_it_lets_those_in_again_that_it_knows(again: Hub) -> None:
    """And when all that are left say that they wait, the next generation begins."""
    connections = []
    for worker in (0, 1):
        connection, welcome = connect(again.address, Who("worker", "here", worker, term=1))
        assert welcome.term == 2 and welcome.patience_s == 5.0
        connection.send(Back(GO, 1, [2]))
        connection.send(Ready(7 + worker, admits=False))
        connections.append(connection)
    again.lose(3, "killed")
    for connection in connections:
        found = []
        while not isinstance(word := connection.receive(), Go):
            found.append(word)
        assert found and all(one == Break(2, 3) for one in found), found
        assert (word.generation, word.members, word.target, word.giver) == (3, (0, 1), 8, 1)
        connection.close()


def test_a_worker_that_gives_up_before_it_has_the_answer_may_come_again(again: Hub) -> None:
    """A coordinator that is slow to answer does not take that for a loss."""
    connect(again.address, Who("worker", "here", 0, term=1))[0].close()
    until(lambda: not again._server.peers)
    connection, _ = connect(again.address, Who("worker", "here", 0, term=1))
    connection.send(Back(GO, 1, [2]))
    until(lambda: ("worker", 0) in again._server.peers and not again._server.peers["worker", 0].unsure)
    connection.close()
    assert words_of(again, Lost).left == 2  # it had the answer: this is a loss


def test_an_evicted_worker_is_refused_and_that_is_on_record(again: Hub) -> None:
    with pytest.raises(Refused, match="the others continued without it"):
        connect(again.address, Who("worker", "here", 2, term=1))
    assert "worker 2 on here came back to the coordinator and was refused" in words_of(again, WarningEvent).message


def test_a_worker_of_no_known_generation_is_refused_and_that_is_on_record(again: Hub) -> None:
    connection, _ = connect(again.address, Who("worker", "here", 7, term=1))
    connection.send(Back(Go(1, (7,), 0, None)))
    assert isinstance(connection.receive(), Evicted)
    assert "worker 7 on here came back to the coordinator and was refused" in words_of(again, WarningEvent).message
    connection.close()


def test_a_coordinator_with_an_older_number_is_none_any_more(again: Hub) -> None:
    """No peer listens to it, and it learns that there is another one."""
    with pytest.raises(RendezvousError) as refusal:
        connect(again.address, Who("worker", "here", 0, term=3))
    assert not isinstance(refusal.value, Refused)  # the worker looks for the other one
    assert words_of(again, Superseded).term == 3
    assert first_known(1, 1, {}).term == 1


# ------------------------------------------------------------- which side continues


def test_of_hosts_that_lose_each_other_at_most_one_side_continues() -> None:
    """However they are cut into two, as each host agrees with one side: both halves have to claim it."""
    for of in range(2, 8):
        for here in range(1, of):
            sides = {without_host(here, here, of), without_host(of - here, of - here, of)}
            assert sides == ({"claim"} if 2 * here == of else {"continue", "end"})


def test_a_side_waits_while_answers_may_still_make_a_difference() -> None:
    for of in range(2, 8):
        for may in range(1, of):
            last = without_host(may, may, of)
            answers = [without_host(agree, may, of) for agree in range(1, may + 1)]
            assert answers[-1] == last and "claim" not in answers[:-1]
            assert set(answers[:-1]) <= ({"wait", "continue"} if last != "end" else {"end"})


def parted(tmp_path: Path) -> Hub:
    """A coordinator on the second of three hosts, of which the others know."""
    hosts = Hosts(3, {0: 1}).come(1, 1, None, ("127.0.0.1", 7)).come(2, 1, None, ("127.0.0.1", 8)).numbered({})
    go = Go(1, (0, 1, 2), 7, None)
    known = Known(Roster(3, 1, frozenset(go.members), formed=True), hosts, term=2, run="r", home=1, go=go)
    notices: queue.SimpleQueue[Any] = queue.SimpleQueue()
    start = Successor(replace(known, patience_s=5.0), listen(LOOPBACK, 0), notices, folder=str(tmp_path))
    return Hub(Address(LOOPBACK, 0, secrets.token_hex(32)), expected=0, successor=start)


def test_a_silent_host_is_lost_once_the_others_agree(tmp_path: Path) -> None:
    """They are asked as they come; a launcher that is here and has not answered may follow the other side yet."""
    with contextlib.closing(parted(tmp_path)) as hub:
        hub.call(hub.launchers.left, 0, "it fell silent", False)
        connection, _ = connect(hub.address, Who("node", "c", 2, term=1))
        assert isinstance(asked := connection.receive(), Without) and asked.host == 0
        connection.send(Beat("watching"))
        while not isinstance(connection.receive(), Clock):
            pass
        assert not hub.hosts.gone
        connection.send(Agreed(0))
        lost = words_of(hub, Lost)
        assert hub.hosts.gone == {0} and lost.with_host and lost.left == 2
        connection.close()


@pytest.mark.parametrize("reached", [True, False])
def test_a_host_that_hangs_up_after_silence_may_follow_another_coordinator(reached: bool, tmp_path: Path) -> None:
    """It hangs up when it ends, and that may be after it has trained on without us."""
    with contextlib.closing(parted(tmp_path)) as hub:
        connection, _ = connect(hub.address, Who("node", "c", 2, term=1))
        connection.send(Beat("watching"))
        while not isinstance(connection.receive(), Clock):
            pass
        if not reached:
            hub._server.peers["node", 2].reached -= 60.0
        connection.close()
        assert isinstance(words_of(hub, Lost | Minority), Lost if reached else Minority)


def test_one_side_of_two_halves_has_the_claim(tmp_path: Path) -> None:
    """The first one; it keeps it when its coordinator is started again, and each parting has a claim of its own."""
    with ThreadPoolExecutor(8) as pool:
        homes = [home for home in range(4) for _ in range(2)]
        claims = pool.map(lambda home: claim(tmp_path, "r", 1, home), homes)
        won = {home for home, mine in zip(homes, claims, strict=True) if mine}
    (winner,) = won
    assert claim(tmp_path, "r", 1, winner) and not claim(tmp_path, "r", 1, winner + 1)
    assert claim(tmp_path, "r", 2, winner + 1) and claim(tmp_path, "another", 1, winner + 1)
    assert not claim(tmp_path / "missing", "r", 1, winner)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.claim-another-1", "run.claim-r-1", "run.claim-r-2"]


def test_a_folder_is_shared_if_the_first_launcher_wrote_there(tmp_path: Path) -> None:
    assert not is_shared(tmp_path, "r")
    (tmp_path / "run.json").write_text('{"run": "r", "workers": 2}')
    assert is_shared(tmp_path, "r") and not is_shared(tmp_path, "s") and not is_shared(tmp_path, "")
