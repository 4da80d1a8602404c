"""How fast the links between the hosts of a run are, and how long a message takes there and back.

All hosts send at once, each to the one that comes `shift` places after it, and so receive at once too: shift 1 is what
an all-reduce does. Of each host the first worker measures; the others wait.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from cordee.core.errors import CordeeError
from cordee.core.events import LinksEvent
from cordee.group.comm import Comm, Handle
from cordee.group.team import Team
from cordee.group.transport.gloo import LOOK_S

PINGS = 12
FIRST_BYTES, MOST_BYTES, GROWTH = 65_536, 67_108_864, 2
ENOUGH_S = 0.2
"""A transfer that lasts so long says how fast a link is; shorter ones say how deep the buffers on the way are."""
AGAIN, LONG_S = 2, 5.0
"""It is repeated unless it lasted long, and the middle one counts: others may use the processor meanwhile."""
_NAME = 64
_SIZE, _READY, _GO, _DATA, _ANSWER = range(71, 76)
"""What tells our messages apart."""


@dataclass(frozen=True)
class Link:
    """From one host to another."""

    source: str
    target: str
    bit_s: float
    round_trip_s: float

    def recorded(self) -> tuple[str, str, float, float]:
        """From, to, Mbit/s, round trip in ms: as the event `links` has it."""
        return self.source, self.target, round(self.bit_s / 1e6, 3), round(self.round_trip_s * 1e3, 4)


def measure(
    team: Team, host: str, shifts: Callable[[int], Iterable[int]], enough_s: float = ENOUGH_S
) -> list[Link] | None:
    """The links between hosts, for all members; every member calls this. None if one was lost meanwhile.

    `shifts` says, for a number of hosts, which ones: `ring` for the neighbours, `all_pairs` for all pairs. A transfer
    lasts `enough_s`, or more.
    """
    measures: tuple[Callable[[Team, int], float], ...] = (_round_trip, partial(_speed, enough_s=enough_s))
    names = _names(team, host)
    if names is None:
        return None
    hosts = list(dict.fromkeys(names))
    speakers = [names.index(one) for one in hosts]
    count = len(hosts)
    mine = torch.zeros(count, len(measures), dtype=torch.float64)
    for shift, (column, ask) in itertools.product(shifts(count), enumerate(measures)):
        if team.world.rank in speakers:
            place = speakers.index(team.world.rank)
            target, source = speakers[(place + shift) % count], speakers[(place - shift) % count]
            mine[(place + shift) % count, column] = _exchange(team, partial(ask, team, target), source)
        if team.layers.gather(torch.zeros(1)).wait() is None:  # the next one begins when all have ended this one
            return None
    tables = team.layers.gather(mine).wait()
    if tables is None:
        return None
    return [
        Link(hosts[i], hosts[j], bit_s=bit_s, round_trip_s=round_trip_s)
        for i, speaker in enumerate(speakers)
        for j, (round_trip_s, bit_s) in enumerate(tables[speaker].tolist())
        if bit_s > 0
    ]


def tell(team: Team, host: str) -> None:
    """Measure the ring, and have it on record; said by one member for all. Not where replicas lie in slices."""
    if team.sliced:
        return
    links = measure(team, host, ring)
    if links and team.speaks:
        team.channel.post(LinksEvent([link.recorded() for link in links]))


def ring(count: int) -> Iterable[int]:
    """From each host to the next."""
    return range(1, min(2, count))


def all_pairs(count: int) -> Iterable[int]:
    """From each host to every other."""
    return range(1, count)


def _names(team: Team, host: str) -> Sequence[str] | None:
    raw = host.encode()[:_NAME].ljust(_NAME)
    gathered = team.layers.gather(torch.frombuffer(bytearray(raw), dtype=torch.uint8)).wait()
    return None if gathered is None else [bytes(one.tolist()).decode(errors="replace").strip() for one in gathered]


def _exchange(team: Team, ask: Callable[[], float], source: int) -> float:
    """What `ask` measures, while we answer `source`; 0 if a member was lost."""
    found: list[float] = []
    tasks = (lambda: found.append(ask()), lambda: _answer(team, source))
    threads = [threading.Thread(target=_quietly, args=(task,), name="cordee-links", daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    lost_at = None
    while any(thread.is_alive() for thread in threads):
        for thread in threads:
            thread.join(LOOK_S / 2)
        if team.membership.broken:
            lost_at = lost_at or time.monotonic()
            if time.monotonic() - lost_at > LOOK_S:  # gloo does not wake a rank that waits in the middle of a message
                team.membership.stuck = True
                break
    return found[0] if found else 0.0


def _quietly(task: Callable[[], Any]) -> None:
    with contextlib.suppress(RuntimeError, CordeeError):  # a peer was lost, which the next gather notices too
        task()


def _await(*handles: Handle) -> None:
    if not all(handle.wait() for handle in handles):
        raise RuntimeError("a peer was lost")


def _lane(team: Team, source: int, target: int) -> Comm:
    """Two groups are two connections between the same members: each carries data one way.

    On one connection, where gloo's own words (that a receiver is ready) queue behind the data of its host, two members
    that send to each other would take turns.
    """
    return team.layers if source < target else team.sums


def _round_trip(team: Team, target: int) -> float:
    """In seconds; while all do so, and none sends much."""
    found = statistics.median(_sent(team, target, 1)[0] for _ in range(PINGS))
    _end(team, target)
    return found


def _speed(team: Team, target: int, *, enough_s: float) -> float:
    """In bits per second; while all send as much as they can."""
    size = FIRST_BYTES
    while True:
        times = [_sent(team, target, size)[1]]
        times += [_sent(team, target, size)[1] for _ in range(AGAIN if enough_s <= times[0] < LONG_S else 0)]
        if (spent := statistics.median(times)) >= enough_s or size >= MOST_BYTES:
            break
        size *= GROWTH
    _end(team, target)
    return size * 8 / max(spent, 1e-9)


def _sent(team: Team, target: int, size: int) -> tuple[float, float]:
    """How long it takes to send so many bytes and get an answer, and how long they came for at the target.

    The target's clock begins with a word that goes the same way just before them: what comes back to us may have to
    wait behind what the target itself sends.
    """
    lane, data = _lane(team, team.world.rank, target), torch.zeros(size, dtype=torch.uint8)
    ready, answer = torch.zeros(1, dtype=torch.uint8), torch.zeros(1, dtype=torch.float64)
    _await(lane.send(torch.tensor([size]), target, _SIZE))
    _await(lane.receive(ready, target, _READY))
    began = time.perf_counter()
    sending = [lane.send(ready, target, _GO), lane.send(data, target, _DATA)]
    _await(lane.receive(answer, target, _ANSWER), *sending)
    return time.perf_counter() - began, float(answer)


def _end(team: Team, target: int) -> None:
    """Nothing more comes."""
    _await(_lane(team, team.world.rank, target).send(torch.zeros(1, dtype=torch.int64), target, _SIZE))


def _answer(team: Team, source: int) -> None:
    lane, size, word = _lane(team, source, team.world.rank), torch.zeros(1, dtype=torch.int64), torch.zeros(1).byte()
    while True:
        _await(lane.receive(size, source, _SIZE))
        if not int(size):
            return
        go = lane.receive(word, source, _GO)
        data = lane.receive(torch.empty(int(size), dtype=torch.uint8), source, _DATA)
        _await(lane.send(torch.zeros(1).byte(), source, _READY))
        _await(go)
        began = time.perf_counter()
        _await(data)
        spent = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
        _await(lane.send(spent, source, _ANSWER))
