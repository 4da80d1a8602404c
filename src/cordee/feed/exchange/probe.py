"""How fast links between hosts are, and how long ways of sending would take over them."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from cordee.core.errors import CordeeError
from cordee.feed.exchange import messages as said
from cordee.feed.exchange.access import Access
from cordee.feed.exchange.listing import BLOCK, Checksum
from cordee.group.bulk import Gone, Link

PROBE_S = 0.2
"""Probes become larger until one takes about so long, at least half of it."""
FIRST, GROWTH = 64 << 10, 16


def answer_probe(link: Link, probe: said.Probe) -> None:
    """Read what a probe brings, and answer."""
    left, buffer = probe.size, memoryview(bytearray(BLOCK))
    check = Checksum("sha256:")  # as files are
    while left:
        part = buffer[: min(left, BLOCK)]
        link.receive_into([part])
        check.add(part)
        left -= len(part)
    link.send(said.Alive())


def _probe(link: Link, size: int) -> float:
    """Seconds until the other end has read so many bytes and its answer is here."""
    began = time.monotonic()
    part = memoryview(bytes(min(size, BLOCK)))
    link.send(said.Probe(size), [part[: min(len(part), size - start)] for start in range(0, size, BLOCK)])
    if not isinstance(link.receive(said.decode), said.Alive):
        raise Gone("it did not answer a probe")
    return time.monotonic() - began


def probed(link: Link) -> float:
    """Bytes per second that a link carries."""
    trip_s = statistics.median(_probe(link, 1) for _ in range(3))
    size = FIRST
    while True:
        took_s = max(_probe(link, size) - trip_s, 1e-6)
        if took_s >= PROBE_S / 2 or size == said.MOST_PROBE:
            return size / took_s
        size = min(int(size * min(PROBE_S / took_s, GROWTH)), said.MOST_PROBE)


def speed_of(access: Access, host: str) -> said.Measured:
    """Of the link from here to a host that listens."""
    try:
        link = access.dial(host)
        try:
            return said.Measured(probed(link))
        finally:
            link.close()
    except (OSError, CordeeError) as error:
        return said.Measured(None, str(error)[:1000])


@dataclass(frozen=True)
class Links:
    """What was measured before sending, in bytes per second; None where there is no link."""

    stars: tuple[float | None, ...]
    """From the sender to each host, all at once."""
    hops: tuple[float | None, ...]
    """From the sender to the first host that is there, and from each of those to the next, all at once."""


def measure(access: Access, hosts: Sequence[str]) -> Links:
    """Probe the links that a broadcast uses, then those that a chain uses."""
    stars = _at_once([partial(speed_of, access, host) for host in hosts], access)
    there = [host for host, speed in zip(hosts, stars, strict=True) if speed]
    between = [partial(_asked, access, one, other) for one, other in pairwise(there)]
    return Links(stars, _at_once([partial(speed_of, access, host) for host in there[:1]] + between, access))


def _at_once(looks: Sequence[Callable[[], said.Measured]], access: Access) -> tuple[float | None, ...]:
    found: list[float | None] = [None] * len(looks)

    def look(number: int) -> None:
        found[number] = looks[number]().bytes_s

    threads = [threading.Thread(target=look, args=(number,), daemon=True) for number in range(len(looks))]
    for thread in threads:
        thread.start()
    ends = time.monotonic() + 3 * access.silence_s
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))
    return tuple(found)


def _asked(access: Access, host: str, other: str) -> said.Measured:
    """What a host measures of its link to another one."""
    try:
        link = access.dial(host)
        try:
            link.send(said.Measure(other))
            answer = link.receive(said.decode)
        finally:
            link.close()
    except (OSError, CordeeError) as error:
        return said.Measured(None, str(error)[:1000])
    return answer if isinstance(answer, said.Measured) else said.Measured(None, "it did not measure")


def forecast(size: int, links: Links) -> dict[str, float]:
    """Seconds that a broadcast and a chain would take for so many bytes; hosts that are not there are left out."""
    stars = [one for one in links.stars if one]
    if not stars:
        return {}
    found = {"broadcast": max(size / one for one in stars)}
    hops = [one for one in links.hops if one]
    if len(hops) == len(stars):
        found["chain"] = size / min(hops) + sum(min(BLOCK, size) / one for one in hops[1:])
    return found


def choose(forecasts: Mapping[str, float]) -> str:
    """The way that is expected to take least; a chain where they are alike, which spares the sender's link."""
    return min(sorted(forecasts, reverse=True), key=lambda way: forecasts[way], default="chain")
