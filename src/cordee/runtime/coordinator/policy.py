"""What follows from what the coordinator knows: pure decisions, without a socket or a process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal

import msgspec

from cordee.core.errors import CordeeError, CutOff, Evicted, WaitedTooLong, WorkerFailed, WorkersLost, error_named
from cordee.group.messages import Failed, Go, Seat, Stuck, name_of
from cordee.runtime.coordinator.holders import Servers, holders_of
from cordee.runtime.coordinator.state import Places, Roster
from cordee.runtime.notices import Lost, Minority, NotStarted, ServerLost, Superseded
from cordee.runtime.wording import Wording

STEADY_STEPS = 20
"""A worker that was lost before it took part in so many steps was lost soon after it came."""
MOST_SOON = 3
"""So many workers in a row may be lost soon after they came, until their place is left empty."""


MOST_SERVERS = 1000
"""So many parameter servers may be started in the place of others."""


def all_finished(roster: Roster) -> bool:
    """Whether all may leave."""
    return roster.formed and bool(roster.alive) and roster.finished >= roster.alive


def next_generation(roster: Roster) -> tuple[Roster, Go] | None:
    """The next generation, if all that it needs are ready: at the start all, later all survivors.

    Those that wait to come in are members of it if all others would let them in. Those that were asked to leave are
    not, unless no other worker has the state.
    """
    complete = len(roster.alive) + len(roster.lost) + len(roster.departed) >= roster.expected
    if not roster.alive or not complete or set(roster.ready) != set(roster.alive):
        return None
    admits = roster.admitting >= roster.alive
    come = roster.waiting if admits else frozenset[int]()
    leave = roster.leaving if admits and roster.leaving < roster.alive else frozenset[int]()
    go = decide(roster.generation + 1, roster.ready)
    members = (roster.alive | come) - leave
    go = msgspec.structs.replace(
        go,
        members=tuple(sorted(members)),
        admits=admits,
        newcomers=tuple(sorted(come)),
        left=tuple(sorted(leave)),
    )
    roster = replace(
        roster,
        generation=go.generation,
        alive=members,
        leaving=roster.leaving - leave,
        departed=roster.departed | leave,
        invited=roster.invited - come,
        waiting=roster.waiting - come,
        ready={},
        admitting=frozenset(),
        finished=frozenset(),
        formed=True,
    )
    return roster, go


def decide(generation: int, committed: dict[int, int]) -> Go:
    """From how far each survivor has come: which workers go on, from where, and which of them hands over the gradient.

    Survivors differ by at most one agreement: number n + 1 needs a contribution of every member, also of those
    that still work on number n. A larger difference is a defect of ours and must not be papered over.
    """
    target, lowest = max(committed.values()), min(committed.values())
    assert target - lowest <= 1, f"survivors are more than one agreement apart: {committed}"
    ahead = [worker for worker, at in sorted(committed.items()) if at == target]
    giver = ahead[0] if lowest < target else None
    return Go(generation, tuple(sorted(committed)), target, giver)


def without_host(agree: int, may: int, of: int) -> Literal["continue", "wait", "claim", "end"]:
    """What follows when a host may only be out of reach, and so many of all others `agree` to continue without it.

    `may` counts those too that may still agree; `of` counts all hosts that the run had, with the silent one. A host
    that agrees follows no other side: so at most one side continues. Half of the hosts do if they have the claim.
    """
    if 2 * agree > of:
        return "continue"
    if 2 * may > of or (2 * may == of and agree < may):
        return "wait"
    return "claim" if 2 * agree == of else "end"


def put_out(pairs: Collection[tuple[int, int]], workers: Mapping[int, int], home: int = 0) -> int:
    """Of pairs of hosts that do not reach each other, by their node numbers: the host to evict first.

    The coordinator's, `home`, stays. It is the one of most pairs; of several the one with fewest `workers`, then the
    one with the highest number.
    """
    counted = Counter(host for pair in pairs for host in pair)
    return max(counted, key=lambda host: (host != home, counted[host], -workers.get(host, 0), host))


def replacement(places: Places, worker: int, steps: int) -> tuple[Places, Seat | None]:
    """The worker to start in the place of one that was lost after so many steps; None if it is not replaced.

    A place where workers are lost again and again is given up: what ends them there ends the next one too.
    """
    if worker not in places.seats:
        return places, None
    rank = places.seats[worker].world.rank
    steady = steps - places.since.get(worker, 0 if not places.seats[worker].joins else steps) >= STEADY_STEPS
    soon = 0 if steady else places.soon.get(rank, 0) + 1
    return (places, None) if soon > MOST_SOON else places.fill(worker, soon)


def server_in_place_of(servers: Servers, number: int, gone: set[int]) -> tuple[Servers, Seat | None]:
    """The server to start in the place of one that was lost; None if it is not replaced.

    On its own host, unless that is `gone`; then on one where no other holder of the shard is, if there is one, and
    rather on one that only stores.
    """
    seat, shard = servers.seat_of(number), servers.shard_of(number)
    if seat is None or len(servers.seats) >= servers.expected + MOST_SERVERS:
        return servers, None
    node, nodes = seat.world.node, seat.world.nodes
    if node in gone:
        held = {
            one.world.node for one in map(servers.seat_of, (h.number for h in holders_of(servers.shards[shard]))) if one
        }
        left = sorted((one for one in range(nodes) if one not in gone), key=lambda one: one not in servers.storing)
        node = next((one for one in left if one not in held), left[0] if left else node)
    return servers.start(shard, node, nodes)


def what_ends(worker: int, host: str, notice: object, wording: Wording) -> CordeeError | None:
    """The error with which such a notice of a worker ends the run; None if it does not."""
    match notice:
        case Failed(error, text, traceback, next_step):
            kind = error_named(error)
            if kind is not WorkerFailed:
                return kind(text, next_step=next_step)
            message = f"worker {worker} on {host} failed with {text}"
            return WorkerFailed(message, rank=worker, host=host, traceback=traceback)
        case Stuck(awaited, seconds, others):
            where = "; ".join(f"{name}: {at}" for name, at in others.items())
            return WaitedTooLong(
                f"worker {worker} on {host or 'this host'} waited longer than {seconds:g} s ({awaited}). "
                f"Where the others were: {where or 'gone'}. "
                "If a step really takes so long, allow more with --deadline. If a worker has left its loop before the "
                "others, by break or return, let all leave it after the same step: s.wish.stop = True"
            )
        case NotStarted(reason):
            return WorkersLost(
                f"worker {worker} could not be started: {reason}. Take fewer workers "
                f"({wording.option('workers')}), or raise the limit"
            )
        case ServerLost(shard=shard, reason=reason, ends=True):
            return WorkersLost(
                f"no parameter server is left for shard {shard}: {name_of(worker)}, the last one, was lost: {reason}. "
                "With backups=true or persist=true, which are the defaults, others take its place"
            )
        case Minority(here, of, reason):
            return CutOff(
                f"{reason}, so this host reaches only {here} of {of} hosts of the run. The others may continue without "
                "it, so it ends. If they do not"
            )
        case Superseded(term):
            return Evicted(f"another coordinator of this run goes on, number {term}: this one ends with its workers")
        case CordeeError():
            return notice
        case Lost(reason=reason, left=0):
            return WorkersLost(f"no worker is left; the last one, worker {worker}, was lost: {reason}")
    return None
