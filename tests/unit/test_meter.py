"""What communication is counted as: bytes before and after a codec, on this host or beyond, hidden or not."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing

import msgspec
import pytest
import torch

from cordee.group import meter as metering
from cordee.group.bulk import Link, Tally
from cordee.group.channel import Unconnected
from cordee.group.comm import Comm, after
from cordee.group.membership import Membership
from cordee.group.meter import Meter
from cordee.group.transport.seam import Transport


class Carrier(Transport):
    """Carries everything, and never ends it."""

    def take(self, *given: object) -> Carrier:
        return self

    sum = gather = broadcast = send = receive = take  # type: ignore[assignment]

    def has_ended(self) -> bool:
        return False


def among(hosts: str, rank: int = 0) -> Comm:
    """The collectives of one of some workers, whose hosts have these letters."""
    membership = Membership(Unconnected())
    membership.worker = rank
    membership.size = len(hosts)
    comm = Comm(membership, Meter())
    comm.among(tuple(range(len(hosts))), dict(enumerate(hosts)))
    comm.transports = (Carrier(),)
    return comm


def counted(comm: Comm) -> tuple[int, int, int]:
    return comm.meter.bytes_sent, comm.meter.bytes_near, comm.meter.bytes_plain


def test_a_ring_sends_to_one_neighbour() -> None:
    tensor = torch.zeros(300)
    for hosts, near in (("ab", 0), ("aa", 1200), ("ba", 0)):
        comm = among(hosts)
        comm.sum(tensor)
        assert counted(comm) == (1200, near, 1200)
    of_all = [among("aabb", rank) for rank in range(4)]
    for comm in of_all:
        comm.sum(tensor)
        comm.gather(tensor)
    each = 2 * 1200 * 3 // 4 + 3 * 1208  # a time travels with what is gathered
    assert all(comm.meter.bytes_sent == comm.meter.bytes_plain == each for comm in of_all)
    assert sum(comm.meter.bytes_near for comm in of_all) == 2 * each, "half of the ring leaves the hosts"


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("root", [0, 1])
def test_a_broadcast_reaches_each_member_once(size: int, root: int) -> None:
    reached, asked = [root], [root]
    while asked:
        following = after(asked.pop(), root, size)
        reached += following
        asked += following
    assert sorted(reached) == list(range(size))


def test_what_a_codec_sends_stands_for_a_sum() -> None:
    comm = among("ab")
    comm.instead_of(torch.zeros(1000))
    comm.gather(torch.zeros(100, dtype=torch.uint8), encoded=True)
    comm.sum(torch.zeros(10), encoded=True)
    assert counted(comm) == (108 + 40, 0, 4000)
    comm.send(torch.zeros(5), 1, 0)
    comm.receive(torch.zeros(5), 1, 0)
    assert counted(comm) == (108 + 40 + 20, 0, 4020)


def test_alone_nothing_is_sent() -> None:
    comm = Comm(Membership(Unconnected()), Meter())
    comm.instead_of(torch.zeros(1000))
    comm.sum(torch.zeros(1000))
    assert counted(comm) == (0, 0, 0)


class Clock:
    """Time that a test lets pass."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(metering, "time", clock := Clock())
    return clock


def ends_at(clock: Clock, moment: float) -> Callable[[], bool]:
    return lambda: clock.now >= moment


def test_what_is_under_way_while_a_worker_computes_is_hidden(clock: Clock) -> None:
    meter = Meter()
    clock.now = 1.0
    meter.begun(ends_at(clock, 5.0))
    clock.now = 2.0
    meter.begun(ends_at(clock, 9.0))  # two at a time count once
    clock.now = 6.0
    meter.look()
    assert meter.hidden_s == 5.0
    since = meter.look()
    clock.now = 9.5
    meter.unblock(since)
    assert (meter.hidden_s, meter.blocked_s) == (5.0, 3.5), "a worker that waits does not compute"
    clock.now = 20.0
    meter.look()
    assert meter.hidden_s == 5.0, "nothing is under way"


def test_what_ended_between_two_looks_is_not_counted(clock: Clock) -> None:
    """When it ended is not known: what is shown as hidden was hidden, and may be more."""
    meter = Meter()
    meter.begun(ends_at(clock, 5.0))
    for clock.now in (1.0, 2.0, 7.0):
        meter.look()
    assert meter.hidden_s == 2.0


def test_what_a_lost_peer_leaves_open_is_forgotten(clock: Clock) -> None:
    comm = among("ab")
    clock.now = 1.0
    comm.sum(torch.zeros(10_000))
    clock.now = 2.0
    comm.drop()
    clock.now = 3.0
    comm.meter.look()
    assert comm.meter.hidden_s == 0.0


def test_small_messages_are_nothing_to_hide(clock: Clock) -> None:
    comm = among("ab")
    comm.sum(torch.zeros(10))
    clock.now = 2.0
    comm.meter.look()
    assert comm.meter.hidden_s == 0.0


def test_connections_count_both_ways() -> None:
    first, second = socket.socketpair()
    tallies = Tally(), Tally()
    with closing(Link(first, 5, tallies[0])) as here, closing(Link(second, 5, tallies[1])) as there:
        here.send({"a": 1}, [torch.arange(100.0)])
        there.receive(msgspec.json.decode)
        there.receive_into([into := torch.zeros(100)])
    assert into[99] == 99.0
    assert tallies[0].sent == tallies[0].near == tallies[1].received > 400
    assert tallies[0].take()[0] == tallies[1].received and tallies[0].take() == (0, 0, 0)
