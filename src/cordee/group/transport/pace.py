"""How fast a group of gloo sends to another host: no faster than the slowest link carries it on.

A host with a fast link fills the queue in front of a slower host. What other hosts say to that host (gloo's "the
receiver is ready", and the acknowledgements of TCP) waits in the same queue. Until it hears them, the slow host sends
nothing: an all-reduce over links of 100, 10 and 10 Mbit/s reached 0.6 to 0.85 of the slowest. A sender that is paced
leaves the queue empty.

A link may become faster. So one sum of `EVERY` is sent without a limit; if it shows that the link carries more than
was measured, the limit is gone for good.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator, Mapping

from cordee.group.transport.sockets import copies

EVERY = 16
LEAST_BYTES = 65_536
"""Smaller sums are left alone."""
FASTEST = 62.5e6
"""Bytes per second. On faster links a queue lasts some milliseconds, and pacing costs time of the processor."""
FASTER = 1.1
"""A link that carries so many times what was measured has become faster."""
_MAX_PACING_RATE = 47
"""SO_MAX_PACING_RATE of Linux, which Python does not name."""
_NO_LIMIT = -1
_TCP_INFO = "=120xQ40xQ"
"""Of `tcp_info`: bytes_acked, and busy_time in microseconds, in which some had been sent and had not arrived."""


class Pace:
    """The connections of one group to other hosts, and their limits."""

    def __init__(self, sockets: dict[int, str], rates: Mapping[str, float]) -> None:
        """`rates` has the bytes per second to some addresses, as they were measured."""
        self._sockets = sockets
        self._rates = {address: rate for address, rate in rates.items() if 0 < rate < FASTEST}
        self._sums = 0
        self._before: dict[int, tuple[int, int]] = {}
        """By socket: what had arrived and how long that had taken, when the limit was lifted."""

    def begin_sum(self, nbytes: int) -> None:
        """A sum of so many bytes begins."""
        if not self._rates or nbytes < LEAST_BYTES:
            return
        if self._sums % EVERY == EVERY - 1:
            for number, _, one in self._connections():
                self._before[number] = _progress(one)
                one.setsockopt(socket.SOL_SOCKET, _MAX_PACING_RATE, _NO_LIMIT)
        elif self._sums % EVERY == 0:
            for number, address, one in self._connections():
                if number in self._before and self._is_faster(_progress(one), self._before[number], address):
                    del self._rates[address]
                    continue
                one.setsockopt(socket.SOL_SOCKET, _MAX_PACING_RATE, int(self._rates[address]))
        self._sums += 1

    def lift(self) -> None:
        """Send as fast as it goes, until the next sum begins: what is gathered tells `sync=auto` how fast that is."""
        if not self._rates or not self._sums:
            return
        for _, _, one in self._connections():
            one.setsockopt(socket.SOL_SOCKET, _MAX_PACING_RATE, _NO_LIMIT)
        self._sums = 0
        self._before.clear()

    def _is_faster(self, now: tuple[int, int], before: tuple[int, int], address: str) -> bool:
        """Never by mistake: acknowledgements come late, so that the time in which bytes were under way is too long."""
        acked, busy_us = now[0] - before[0], now[1] - before[1]
        return acked >= LEAST_BYTES and 1e6 * acked > FASTER * self._rates[address] * busy_us

    def _connections(self) -> Iterator[tuple[int, str, socket.socket]]:
        """Those to addresses with a known rate."""
        for number, one in copies(self._sockets):
            with contextlib.suppress(OSError):  # listens, was closed, or an old kernel
                if (address := one.getpeername()[0]) in self._rates:
                    yield number, address, one


def _progress(one: socket.socket) -> tuple[int, int]:
    """Bytes of a connection that have arrived, and for how many microseconds some were under way."""
    info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, struct.calcsize(_TCP_INFO))
    acked, busy_us = struct.unpack(_TCP_INFO, info) if len(info) == struct.calcsize(_TCP_INFO) else (0, 0)
    return acked, busy_us
