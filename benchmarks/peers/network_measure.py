"""How `network.py` measures its tables."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence

from peers.contenders import PEERS, SYNCHRONOUS, Contender, Running, Stage, ours
from peers.hosts import HOSTS
from peers.network_figures import (
    UNLIMITED,
    Cell,
    at_ends,
    beside,
    composed_cell,
    crossing,
    every_of,
    loss_at,
    reaction_of,
    summary_of,
    throughput_cell,
    trained_cell,
    turn_steps,
)
from peers.network_record import Book, show_loss, show_throughput
from peers.pace import spent_s
from peers.shakespeare import TASKS

from cordee.core.errors import CordeeError

WARM_UP = 12
"""Steps before anything is measured, without limits: PyTorch's PowerSGD compresses from the 11th on."""
FIRST_DECISION, AUTO_WARM_UP, AUTO_WARM_UP_S = 5, 30, 30.0
"""`sync=auto` decides after 2 steps and again after 10. So many steps it has at its speed, not all if they are slow."""
LIMIT_STEPS = 5
"""Steps of the limit before and after each cell."""
CELL_S, SMALL_STEPS, SMALL_CELL_S = 36.0, 20, 12.0
"""How long a cell is measured, about; with the small model, and how many steps of it."""
AUTO_STEPS = 32
"""Steps of one turn where `sync=auto` may choose local steps: it merges after 4, 8, 16 or 32. A cell has two turns."""
LONGEST = 1.5
"""So many times the steps of synchronous training may a contender take to reach its loss."""
REACTION, REACTION_TURN = ((1000.0, 24), (20.0, 40), (1000.0, 48)), 8
"""Speeds, and steps at each of them, in turns of so many: where windows of 8 and 16 steps may end."""
AUTO = "sync=auto"
FIXED = tuple(f"sync=local,local_steps={how}" for how in ("8,compress=int8", "16,compress=onebit", "8,compress=onebit"))
"""Of our fixed plans, those that were the fastest at some speed, and the one between them."""
TRAINED = {
    "1000": (AUTO, FIXED[0], "ddp"),
    "100": (AUTO, FIXED[0], "accelerate local 50"),
    "10": (AUTO, FIXED[1], FIXED[2], "accelerate local 50"),
}
"""What the table `trained` compares: the fixed plans and the peer that were the fastest at a speed; at others, ours."""
FAILURES = (CordeeError, RuntimeError, OSError, subprocess.SubprocessError)


class TableLost(Exception):
    """What all others are compared with has failed: the table cannot go on."""


def starts_of(contenders: Sequence[Contender], speeds: Sequence[str]) -> Iterator[tuple[Contender, list[str]]]:
    """What is started, and which speeds are measured then."""
    for contender in contenders:
        yield from ((contender, [speed]) for speed in speeds) if contender.adapts else [(contender, list(speeds))]


def _first(speeds: Sequence[str]) -> float | None:
    """In Mbit/s, that at which a contender that adapts is started."""
    return None if speeds[0] == UNLIMITED else float(speeds[0])


def give(running: Running, contender: Contender, speed: str) -> float:
    """Set the speed and get used to it; about the time of a step from now on, 0 where it does not matter."""
    running.give(None if speed == UNLIMITED else float(speed))
    if not contender.adapts:  # one step is little beside the many of a turn with one merge
        return running.turn(1).seconds if contender.period == 1 else 0.0
    running.turn(FIRST_DECISION)
    step_s = max(running.turn(1).seconds, 1e-3)
    if steps := int(min(AUTO_WARM_UP - FIRST_DECISION - 1, AUTO_WARM_UP_S / step_s)):
        running.turn(steps)
    return step_s


def timed(running: Running, contender: Contender, wanted: int, step_s: float, cell_s: float) -> list[Cell]:
    """Turns, until there are as many steps as wanted or it takes too long."""
    size, turns = turn_steps(wanted, contender.period, step_s, cell_s), []
    if contender.link_changes_updates:
        size, wanted = AUTO_STEPS, 2 * AUTO_STEPS
    while sum(turn["steps"] for turn in turns) < wanted and sum(turn["seconds"] for turn in turns) < cell_s:
        turn = running.turn(size)
        turns.append({"steps": turn.steps, "seconds": turn.seconds, "sent_bytes": turn.sent_bytes})
    return turns


# ---------------------------------------------------------------- throughput


def measure_throughput(stage: Stage, book: Book, given: argparse.Namespace) -> None:
    """Each contender at each speed, between two turns of the limit."""
    left = [
        (contender, some)
        for contender, speeds in starts_of(given.present, given.speeds)
        if (some := [speed for speed in speeds if not book.cell("throughput", contender, speed)])
    ]
    if not left:
        return
    with Stage() as apart, apart.trained(ours(SYNCHRONOUS), "gpt") as limit:
        limit.turn(WARM_UP)
        limit.give(None)
        for contender, speeds in given.clock.each("throughput", left):
            try:
                with stage.trained(contender, "gpt", _first(speeds)) as running:
                    if not contender.adapts:
                        running.turn(every_of(WARM_UP, contender.period))
                    for speed in speeds:
                        _measure_share(running, limit, contender, speed, book, given.steps)
            except FAILURES as error:
                book.failed("throughput", contender, speeds, error)


def _measure_share(running: Running, limit: Running, contender: Contender, speed: str, book: Book, wanted: int) -> None:
    bounds = [_limit_step_s(limit)]
    step_s = give(running, contender, speed)
    turns = timed(running, contender, wanted, step_s, CELL_S)
    bounds.append(_limit_step_s(limit))
    cell = throughput_cell(turns, bounds, TASKS["gpt"].batch, wanted)
    if contender.adapts:
        cell["decisions"] = running.events("decision")
    book.keep("throughput", contender, speed, cell)
    show_throughput(contender.name, speed, cell)


def _limit_step_s(limit: Running) -> float:
    try:
        return limit.turn(LIMIT_STEPS).seconds / LIMIT_STEPS
    except FAILURES as error:
        raise TableLost(f"the run that gives the limit was lost; --resume continues: {error}") from error


# ---------------------------------------------------------------- time to loss


def measure_losses(stage: Stage, book: Book, given: argparse.Namespace) -> None:
    """Each contender: its losses once, and its step times at each speed; or both at once."""
    speeds = [speed for speed in given.speeds if speed != UNLIMITED]
    left = [
        (contender, some)
        for contender, speeds in starts_of(given.present, speeds)
        if (some := [speed for speed in speeds if not book.cell("time_to_loss", contender, speed)])
    ]
    for contender, some in given.clock.each("time_to_loss", left):
        try:
            with stage.trained(contender, "small", _first(some)) as running:
                if contender.link_changes_updates:
                    book.keep("time_to_loss", contender, some[0], _trained(running, contender, some[0], book, given))
                else:
                    _compose(running, contender, some, book, given)
        except FAILURES as error:
            book.failed("time_to_loss", contender, some, error)


def _trained(running: Running, contender: Contender, speed: str, book: Book, given: argparse.Namespace) -> Cell:
    """Losses and times at this speed."""
    running.give(float(speed))
    before = running.processor_s()
    curve = learn(running, contender, book, given, given.cap_minutes * 60)
    spent = spent_s(before, running.processor_s())
    steps = curve[-1][0]
    if not contender.script:
        curve = at_ends(curve, running.events("window"))
    cell = trained_cell(curve, target_of(book, given), given.learn, contender.period)
    cell["processor_ms"] = round(1e3 * spent / steps / HOSTS, 2)
    if not contender.script:
        cell["compute_ms"] = _compute_ms(running)
    if contender.adapts:
        cell["decisions"] = running.events("decision")
    show_loss(contender.name, speed, cell)
    return cell


def _compute_ms(running: Running) -> float:
    """The mean over steps and workers, waiting for the processor included."""
    return round(statistics.fmean(ms for one in running.events("times") for ms in one["compute_ms"]), 2)


def _compose(
    running: Running, contender: Contender, speeds: Sequence[str], book: Book, given: argparse.Namespace
) -> None:
    """Losses on hosts without limits, unless they are known, then step times with them."""
    if contender.name not in book.result["curves"]:
        curve = learn(running, contender, book, given, float("inf"))
        points = [[int(steps), round(loss, 5)] for steps, loss, _ in curve]
        book.result["curves"][contender.name] = {
            "loss_at_equal_samples": loss_at(points, given.learn),
            "steps_to_loss": crossing(points, target_of(book, given, contender, points), contender.period),
            "points": points,
        }
        book.write()
    elif not contender.adapts:
        running.turn(every_of(WARM_UP, contender.period))
    points = book.result["curves"][contender.name]["points"]
    for speed in speeds:
        step_s = give(running, contender, speed)
        turns = timed(running, contender, SMALL_STEPS, step_s, SMALL_CELL_S)
        whole_ms = book.result["time_to_loss"].get("ddp", {}).get(speed, {}).get("step_ms")
        whole = (contender.whole_steps, whole_ms)
        cell = composed_cell(points, target_of(book, given), contender.period, turns, whole)
        book.keep("time_to_loss", contender, speed, cell)
        show_loss(contender.name, speed, {**book.result["curves"][contender.name], **cell})


def learn(
    running: Running, contender: Contender, book: Book, given: argparse.Namespace, cap_s: float
) -> list[list[float]]:
    """Train until the loss of synchronous training is reached and as many samples are seen, or it takes too long.

    Losses are measured afterwards: a pause would disturb `sync=auto`, which measures what steps take.
    """
    points: list[tuple[int, str, float]] = []
    curve: list[list[float]] = []
    done, seconds, every = 0, 0.0, every_of(given.every, contender.period)
    while True:
        boundary = given.learn if done < given.learn else LONGEST * given.learn
        turn = running.turn(min(every, max(contender.period, int(boundary) - done)))
        assert turn.kept is not None
        done, seconds = done + turn.steps, seconds + turn.seconds
        points.append((done, turn.kept, seconds))
        over = seconds >= cap_s or done >= LONGEST * given.learn
        if over or done >= given.learn:
            curve += [[steps, TASKS["small"].loss_of(kept), after_s] for steps, kept, after_s in points[len(curve) :]]
            if over or crossing(curve, target_of(book, given, contender, curve), contender.period) is not None:
                return curve


def target_of(
    book: Book, given: argparse.Namespace, contender: Contender | None = None, curve: Sequence[Sequence[float]] = ()
) -> float:
    """The loss that synchronous training reaches; its own `curve` tells it before it is written down."""
    if contender is not None and contender.name == SYNCHRONOUS:
        loss = loss_at(curve, given.learn)
    else:
        loss = book.result["curves"].get(SYNCHRONOUS, {}).get("loss_at_equal_samples")
    if loss is None:
        raise TableLost(f"there is no loss of {SYNCHRONOUS} after {given.learn} steps; --resume tries again")
    return float(loss)


# ---------------------------------------------------------------- reaction


def measure_reaction(stage: Stage, book: Book, given: argparse.Namespace) -> None:
    """The links change their speed in mid-run."""
    contender, given_at = ours(AUTO), []
    try:
        with stage.trained(contender, "gpt") as running:
            for speed, steps in REACTION:
                given_at.append(time.time())
                running.give(speed)
                for _ in range(steps // REACTION_TURN):
                    running.turn(REACTION_TURN)
            decisions, committed = running.events("decision"), running.events("step")
    except FAILURES as error:
        book.failed("reaction", contender, (), error)
        return
    # A turn may end within a window, whose steps are all committed by then.
    done = [sum(one["at"] <= at for one in committed) for at in given_at]
    book.result["reaction"] = {
        "date": book.date,
        "plan": AUTO,
        "changes": [[steps, f"to {speed:g} Mbit/s"] for steps, (speed, _) in zip(done, REACTION, strict=True)],
        "steps_until_another_choice": reaction_of(decisions, done[1:]),
        "forecasts": beside(decisions),
        "decisions": decisions,
        "step_ms": [one["ms"] for one in committed],
    }
    book.write()


# ---------------------------------------------------------------- trained


def measure_trained(stage: Stage, book: Book, given: argparse.Namespace) -> None:
    """The fastest at each speed, each trained there: nothing is composed, and all pay for their first steps.

    In every round another one begins, so that what changes on the machine in that time does not favour one of them.
    Other speeds of the record stay as they are.
    """
    table = book.result["trained"] = {"starts": {}, "summary": {}, **book.result.get("trained", {}), "date": book.date}
    table["starts"] = {speed: cells for speed, cells in table["starts"].items() if speed not in given.speeds}
    starts: list[tuple[Contender, list[str]]] = []
    for number in range(given.rounds):
        for speed in given.speeds:
            if speed != UNLIMITED:
                row = _trained_at(speed)
                turn = number % len(row)
                starts += [(one, [speed, str(number + 1)]) for one in (*row[turn:], *row[:turn])]
    for contender, (speed, number) in given.clock.each("trained", starts):
        if contender.missing:
            book.leave_out("trained", contender, contender.missing)
            continue
        try:
            with stage.trained(contender, "small", float(speed)) as running:
                cell = _trained(running, contender, speed, book, given)
        except FAILURES as error:
            book.ended_badly("trained", contender, error)
            continue
        table["starts"].setdefault(speed, {}).setdefault(contender.name, []).append({"round": int(number), **cell})
        table["summary"] = summary_of(table["starts"], AUTO)
        book.write()


def _trained_at(speed: str) -> list[Contender]:
    peers = {peer.name: peer for peer in PEERS}
    return [peers.get(name) or ours(name) for name in TRAINED.get(speed, (AUTO, *FIXED))]


TABLES = {
    "throughput": measure_throughput,
    "time_to_loss": measure_losses,
    "reaction": measure_reaction,
    "trained": measure_trained,
}
