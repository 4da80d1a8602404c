"""What follows when another number of workers is asked for, a host comes, or an evicted worker wakes: pure decisions.

Workers come in and leave between two steps; `hub.py` and `group/team.py` see to that. Here is decided how many, where,
and which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cordee.core.memberevents import Why
from cordee.core.plan import Plan
from cordee.core.words import plural
from cordee.core.world import World
from cordee.group.messages import Command, Evicted, Running, Seat, Welcome
from cordee.runtime.coordinator.policy import MOST_SOON, replacement
from cordee.runtime.coordinator.state import Places, Roster

if TYPE_CHECKING:
    from cordee.runtime.launch import Launch


@dataclass(frozen=True)
class Change:
    """What is done: which workers are started, and which are asked to leave."""

    why: Why
    """What it follows from: `scale`, `join`, `host`, `woke` or `leave`."""
    text: str
    """For the user and the record."""
    starts: tuple[Seat, ...] = ()
    leaves: tuple[int, ...] = ()


def refuses_newcomers(plan: Plan, kind: str, started: int | None = None) -> str:
    """Why no worker can come in to a run of this plan that began with so many workers; empty if one can.

    `kind` is that of its `Target`; `started` is None where it is not known yet.
    """
    if kind == "script":
        return "its script has a loop of its own (cordee run), and only the script knows where it stands"
    if refusal := refuses_departures(plan, kind):
        return refusal
    if plan.replace:
        return ""
    if plan.sync == "auto":
        return "sync=auto may choose ways to agree in which no newcomer has a place: start the run with --replace"
    if started == 1:
        return (
            "it was started with one worker, which trains in ways that have no place for others: start the run "
            "with --replace, or with --workers 2 or more"
        )
    return ""


def refuses_departures(plan: Plan, kind: str) -> str:
    """Why no worker can leave a run of this plan between two steps; empty if one can."""
    if kind == "script" and (plan.window is not None or plan.sync == "auto"):
        return f"in a loop of your own (cordee run), workers under sync={plan.sync} may be in different steps"
    if plan.tensor * plan.pipeline > 1 or plan.shard != "none":
        return (
            "with tensor or pipeline above 1, or with shard=, a replica lies over several workers. End the run, and "
            "resume it with another number of workers"
        )
    return ""


def decide(command: Command, places: Places, check: Callable[[int], None]) -> tuple[Places, Change]:
    """What a command comes to; `check` raises if so many workers have no room on the coordinator's host.

    Those that leave have the highest numbers; those that come take the emptiest places.
    """
    here, wanted = len(places.here), command.workers if command.what == "scale" else len(places.here) + command.workers
    if wanted <= here:
        leaves = tuple(sorted(places.here)[wanted:])
        names = ", ".join(map(str, leaves))
        word = f"{plural(here, 'worker')}, as before"
        if leaves:
            verb = "leaves" if len(leaves) == 1 else "leave"
            word = f"{here} → {plural(wanted, 'worker')}: {_numbered(leaves)} {names} {verb} after the next step"
        return replace(places, here=places.here - set(leaves)), Change(command.what, word, leaves=leaves)
    home, node = places.home, places.home if command.what == "join" else None
    starts = list[Seat]()
    nodes = {home, *(places.seats[worker].world.node for worker in places.here)} if node is None else {node}
    check((wanted - here) // len(nodes))  # before so many places are thought of
    for _ in range(wanted - here):
        places, seat = extra(places, node)
        starts.append(seat)
    check(sum(places.seats[worker].world.node == home for worker in places.here))
    return places, _coming(command.what, places, starts, f"{here} → {plural(wanted, 'worker')}: ")


def extra(places: Places, node: int | None = None) -> tuple[Places, Seat]:
    """One more worker, at the place that the fewest have; on any host that has workers, or on this one."""
    own = places.home if node is None else node
    nodes = {own, *(places.seats[worker].world.node for worker in places.here if node is None)}
    worlds = {_place(seat): seat.world for seat in places.seats.values() if seat.world.node in nodes}
    taken = Counter(_place(places.seats[worker]) for worker in places.here)
    # A host that has no place of its own (it only stores) gets the first place there.
    world = worlds[min(worlds, key=lambda at: (taken[at], at))] if worlds else _first_place(places, own)
    return places.seat(world)


def host_came(places: Places, node: int, host: str, workers: int) -> tuple[Places, Change]:
    """A host has entered the run, and has so many places."""
    like = next(iter(places.seats.values())).world
    starts = list[Seat]()
    for local in range(workers):
        world = replace(like, local_rank=local, local_size=workers, node=node, nodes=max(like.nodes, node + 1))
        places, seat = places.seat(world)
        starts.append(seat)
    return places, _coming("host", places, starts, f"host {host} enters the run: ")


def take_back(places: Places, worker: int, steps: int) -> tuple[Places, Change]:
    """The process of an evicted worker continues after so many steps: a fresh one takes its place.

    The process itself has missed steps, and its place among the others is gone, so it is ended.
    """
    for newer, older in places.replaces.items():
        if older == worker:
            return places, Change("woke", f"worker {worker} continues, but worker {newer} has its place: it is ended")
    places, seat = replacement(places, worker, steps)
    what = f"worker {worker}, which was stopped and evicted, continues: "
    if seat is None:
        why = f"its place stays empty, since {MOST_SOON} others were lost there soon after they came"
        return places, Change("woke", what + why)
    return places, Change("woke", f"{what}it returns as worker {seat.worker}", (seat,))


def none_stays(roster: Roster) -> bool:
    """Whether all workers were asked to leave, and no other is about to come."""
    return bool(roster.leaving) and roster.leaving >= roster.alive and not roster.invited


def late_host(launch: Launch, started: int) -> Welcome | Evicted:
    """The answer to a host that enters a run which so many workers began."""
    refusal = refuses_newcomers(launch.plan, launch.target.kind, started)
    if not refusal and launch.target.kind != "job" and launch.engine is None:
        refusal = "its job was made in another process, and has no file"
    if refusal:
        return Evicted(f"no host can enter this run: {refusal}")
    target = launch.target
    return Welcome({}, run=Running(target.path, target.settings, str(launch.plan), launch.deadline_s))


def _coming(why: Why, places: Places, starts: list[Seat], before: str) -> Change:
    numbers = tuple(seat.worker for seat in starts)
    if not numbers:
        return Change(why, f"{before}it has no workers")
    names = ", ".join(map(str, numbers))
    verb = "starts and comes" if len(numbers) == 1 else "start and come"
    return Change(why, f"{before}{_numbered(numbers)} {names} {verb} in between two steps", tuple(starts))


def _numbered(workers: tuple[int, ...]) -> str:
    return "worker" if len(workers) == 1 else "workers"


def _place(seat: Seat) -> tuple[int, int]:
    return seat.world.node, seat.world.local_rank


def _first_place(places: Places, node: int) -> World:
    like = next(iter(places.seats.values())).world
    return replace(like, local_rank=0, local_size=1, node=node)
