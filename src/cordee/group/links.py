"""How fast the links between the hosts of a run are, and how long a message takes there and back.

All hosts send at once, each to the one that comes `shift` places after it, and so receive at once too: shift 1 is what
an all-reduce does. Of each host the first worker measures; the others wait.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial

import torch

from cordee.core.errors import CordeeError
from cordee.core.events import LinksEvent
from cordee.group.comm import Comm, Handle
from cordee.group.team import Team
from cordee.group.transport.gloo import LOOK_S

PINGS = 12
FIRST_BYTES, MOST_BYTES = 65_536, 67_108_864
ENOUGH_S = 0.2
"""A transfer that lasts so long says how fast a link is; shorter ones say how deep the buffers on the way are."""
TIMES, LONG_S = 3, 5.0
"""It is repeated unless it lasted long, and the middle one counts: others may use the processor meanwhile."""
_NAME = 64
_PING, _PONG, _GO, _DATA = range(71, 75)
"""What tells our messages apart."""

Link = tuple[str, str, float, float]
"""From host, to host, Mbit/s, round trip in ms: as the event `links` has it."""


def tell(team: Team, host: str) -> None:
    """Measure the ring; send sums no faster than its slowest link from then on. Not where replicas lie in slices.

    One member has it on record for all.
    """
    links = measure(team, host) if not team.sliced else None
    if links:
        team.lines.pace(min(mbit_s for _, _, mbit_s, _ in links) * 125_000)
    if links and team.speaks:
        team.channel.post(LinksEvent(links))


def measure(team: Team, host: str, *, pairs: bool = False, enough_s: float = ENOUGH_S) -> list[Link] | None:
    """The links from each host to the next, or between all `pairs`, for all members; None if one was lost meanwhile.

    Every member calls this. A transfer lasts `enough_s`, or more.
    """
    raw = host.encode()[:_NAME].ljust(_NAME)
    of_all = team.layers.gather(torch.frombuffer(bytearray(raw), dtype=torch.uint8)).wait()
    if of_all is None:
        return None
    names = [bytes(one.tolist()).decode(errors="replace").strip() for one in of_all]
    hosts = list(dict.fromkeys(names))
    speakers = [names.index(one) for one in hosts]
    found: dict[tuple[int, int], Link] = {}
    for shift in range(1, len(hosts) if pairs else min(2, len(hosts))):
        targets = [speakers[(place + shift) % len(hosts)] for place in range(len(hosts))]
        trips = _round_trips(team, speakers, targets)
        speeds = trips and _speeds(team, speakers, targets, enough_s)
        if not trips or not speeds:
            return None
        for place, (trip_s, bit_s) in enumerate(zip(trips, speeds, strict=True)):
            other = (place + shift) % len(hosts)
            found[place, other] = hosts[place], hosts[other], round(bit_s / 1e6, 3), round(trip_s * 1e3, 4)
    return [found[place] for place in sorted(found)]


def _round_trips(team: Team, speakers: list[int], targets: list[int]) -> list[float] | None:
    """Of each speaker to its target, in seconds; while all do so, and none sends much."""
    mine, task = team.world.rank, None
    if mine in speakers:
        target, source = targets[speakers.index(mine)], speakers[targets.index(mine)]
        task = lambda: statistics.median(_ping(team, target, source) for _ in range(PINGS))  # noqa: E731
    seconds = _exchange(team, task)
    return None if seconds is None else [seconds[speaker] for speaker in speakers]


def _speeds(team: Team, speakers: list[int], targets: list[int], enough_s: float) -> list[float] | None:
    """From each speaker to its target, in bits per second; while all send that are not measured yet."""
    mine, task = team.world.rank, None
    sizes, speeds = [FIRST_BYTES] * len(speakers), [0.0] * len(speakers)
    spent: list[list[float]] = [[] for _ in speakers]
    while not all(speeds):
        if mine in speakers:
            out, into = speakers.index(mine), targets.index(mine)
            task = partial(_transfer, team, (targets[out], sizes[out]), (speakers[into], sizes[into]))
        seconds = _exchange(team, task)
        if seconds is None:
            return None
        for place, target in enumerate(targets):
            if speeds[place]:
                continue
            if not spent[place] and seconds[target] < enough_s and sizes[place] < MOST_BYTES:
                sizes[place] *= 2
                continue
            spent[place].append(seconds[target])
            if len(spent[place]) == TIMES or seconds[target] > LONG_S:
                speeds[place] = sizes[place] * 8 / max(statistics.median(spent[place]), 1e-9)
                sizes[place] = 1
    return speeds


def _exchange(team: Team, task: Callable[[], float] | None) -> list[float] | None:
    """What the `task` of each member measures; None if one was lost. The next one begins when all have ended this one.

    On a thread of its own: gloo does not wake a rank that waits in the middle of a message.
    """
    measured: list[float] = []

    def run() -> None:
        with contextlib.suppress(RuntimeError, CordeeError):  # a peer was lost, which the gather notices too
            measured.append(task() if task is not None else 0.0)

    thread = threading.Thread(target=run, name="cordee-links", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(LOOK_S / 2)
        if team.membership.broken:
            thread.join(LOOK_S)
            team.membership.stuck = team.membership.stuck or thread.is_alive()
            break
    of_all = team.layers.gather(torch.tensor(measured or [0.0], dtype=torch.float64)).wait()
    return None if of_all is None else [float(one) for one in of_all]


def _ping(team: Team, target: int, source: int) -> float:
    """How long a word takes to the target and back, while we send back what comes from the source."""
    mine, word = team.world.rank, torch.zeros(1, dtype=torch.uint8)
    ping = _lane(team, source, mine).receive(word.clone(), source, _PING)
    pong = _lane(team, target, mine).receive(word.clone(), target, _PONG)
    began = time.perf_counter()
    sent = _lane(team, mine, target).send(word, target, _PING)
    _await(ping)
    answer = _lane(team, mine, source).send(word, source, _PONG)
    _await(pong)
    spent = time.perf_counter() - began
    _await(sent, answer)
    return spent


def _transfer(team: Team, out: tuple[int, int], into: tuple[int, int]) -> float:
    """How long so many bytes took from the source (`into`: rank, bytes), while we send to the target (`out`).

    The clock begins with a word that comes the same way just before them.
    """
    (target, sent), (source, received), mine = out, into, team.world.rank
    data, word = torch.zeros(sent, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
    from_source, to_target = _lane(team, source, mine), _lane(team, mine, target)
    go = from_source.receive(word.clone(), source, _GO)
    came = from_source.receive(torch.empty(received, dtype=torch.uint8), source, _DATA)
    sending = to_target.send(word, target, _GO), to_target.send(data, target, _DATA)
    _await(go)
    began = time.perf_counter()
    _await(came)
    spent = time.perf_counter() - began
    _await(*sending)
    return spent


def _lane(team: Team, source: int, target: int) -> Comm:
    """Two groups are two connections between the same members: each carries data one way.

    On one connection, where gloo's own words (that a receiver is ready) queue behind the data of its host, two members
    that send to each other would take turns.
    """
    return team.layers if source < target else team.sums


def _await(*handles: Handle) -> None:
    if not all(handle.wait() for handle in handles):
        raise RuntimeError("a peer was lost")
