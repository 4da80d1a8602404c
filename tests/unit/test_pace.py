"""Limits on connections to other hosts: real sockets on loopback, of which each address is a host."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from cordee.group.transport.pace import EVERY, LEAST_BYTES, Pace

NEXT, OTHER = "127.0.0.2", "127.0.0.3"
RATE = 1_000_000


@dataclass
class Connections:
    """From us to two hosts, and their ends there."""

    ours: dict[str, socket.socket]
    theirs: dict[str, socket.socket]

    def pace(self) -> Pace:
        return Pace(
            {one.fileno(): os.readlink(f"/proc/self/fd/{one.fileno()}") for one in self.ours.values()}, {NEXT: RATE}
        )

    def limits(self) -> dict[str, int | None]:
        """What the kernel has; None is no limit."""
        found = {host: one.getsockopt(socket.SOL_SOCKET, 47) for host, one in self.ours.items()}
        return {host: None if limit == -1 else limit for host, limit in found.items()}

    def send(self, host: str, nbytes: int) -> None:
        for _ in range(nbytes // 65_536):
            self.ours[host].sendall(bytes(65_536))
            self.theirs[host].recv(65_536, socket.MSG_WAITALL)


@pytest.fixture
def connections() -> Iterator[Connections]:
    with ExitStack() as stack:
        ours, theirs = {}, {}
        for host in (NEXT, OTHER):
            listener = stack.enter_context(socket.create_server((host, 0)))
            ours[host] = stack.enter_context(socket.create_connection(listener.getsockname()))
            theirs[host] = stack.enter_context(listener.accept()[0])
        yield Connections(ours, theirs)


def test_only_the_measured_host_and_only_large_sums(connections: Connections) -> None:
    pace = connections.pace()
    pace.begin_sum(LEAST_BYTES - 1)
    assert connections.limits() == {NEXT: None, OTHER: None}
    pace.begin_sum(LEAST_BYTES)
    assert connections.limits() == {NEXT: RATE, OTHER: None}


def test_one_sum_is_sent_without_a_limit_and_the_next_with_it(connections: Connections) -> None:
    pace = connections.pace()
    limits = []
    for _ in range(2 * EVERY):
        pace.begin_sum(LEAST_BYTES)
        limits.append(connections.limits()[NEXT])
    assert limits == 2 * [*[RATE] * (EVERY - 1), None]


def test_a_link_that_is_faster_than_was_measured_has_no_limit_any_more(connections: Connections) -> None:
    pace = connections.pace()
    for _ in range(EVERY):
        pace.begin_sum(LEAST_BYTES)
    connections.send(NEXT, 50 * 65_536)  # at the speed of memory
    for _ in range(2 * EVERY):
        pace.begin_sum(LEAST_BYTES)
        assert connections.limits()[NEXT] is None


def test_a_connection_that_was_closed_is_left_alone(connections: Connections) -> None:
    pace = connections.pace()
    connections.ours[NEXT].shutdown(socket.SHUT_RDWR)
    connections.ours[OTHER].close()
    for _ in range(EVERY + 1):
        pace.begin_sum(LEAST_BYTES)
