"""The parts of `recovery.py` that have peers, hosts, or turns."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peers.losing import HERE, SIZE, SYSTEMS, Cordee, System, alive
from peers.losing_figures import (
    Worker,
    commit_times,
    history,
    samples_between,
    seen_wrongly,
    spread,
    stall,
    stall_around,
    steps_again,
    usual_step,
)
from peers.losing_task import SAMPLES

from cordee.core.eventlog import read_events
from cordee.core.events import FaultEvent, RegroupEvent, StepEvent, WarningEvent
from cordee.watch.audit.prove import audit

EVERY_S = 15.0
"""From one kill to the next."""
AFTER_S = 10.0
"""What is done to a run counts for so long."""
RESTARTED = {"join": "a lost worker ends all, which start again"}
Result = dict[str, Any]


# ------------------------------------------------------------- kill, join, goodput


def kill(count: int, folder: Path) -> Result:
    """Each system undisturbed, then with one worker killed every 15 s and replaced."""
    found: Result = {"every_s": EVERY_S, "workers": SIZE, "systems": {}}
    for name, kind in SYSTEMS.items():
        if why := kind.missing():
            found["systems"][name] = {"left_out": why}
            continue
        system = kind(folder / name)
        with system.running():
            found["systems"][name] = {"what": kind.words, **_killed(system, count)}
        print(name, json.dumps(found["systems"][name]), flush=True)
    return found


def _killed(system: System, count: int) -> Result:
    draw, began = random.Random(0), time.time()
    time.sleep(count * EVERY_S / 2)
    disturbed = time.time()
    kills: list[tuple[float, Worker]] = []
    for _ in range(count):
        kills.append(system.kill_one(draw))
        system.replace(kills[-1][1].rank)
        time.sleep(max(0.0, kills[-1][0] + EVERY_S - time.time()))
    system.await_all()
    ended = time.time()
    proven = _proven(system) if isinstance(system, Cordee) else {}
    workers = system.workers()
    stalls = [stall(commit_times(workers, victim.pid), at, at + AFTER_S) for at, victim in kills]
    usual = samples_between(history(workers), began, disturbed) / (disturbed - began)
    rate = samples_between(history(workers), disturbed, ended) / (ended - disturbed)
    lost, twice = seen_wrongly(history(workers), SAMPLES)
    return {
        "kill_to_next_step_beyond_a_step_s": spread(stalls),
        **(RESTARTED if system.restarts_all else _joins(workers, kills, system)),
        "steps_done_again": steps_again(workers),
        "samples_lost": lost,
        "samples_repeated": twice,
        **proven,
        "step_ms": round(1e3 * usual_step(commit_times(workers)), 2),
        "samples_per_s": {"undisturbed": round(usual), "with_kills": round(rate)},
        "goodput": round(rate / usual, 4),
    }


def _joins(workers: list[Worker], kills: list[tuple[float, Worker]], system: System) -> Result:
    """From the start of a replacement to its first step; and how long the others stood still for it."""
    known, took, stood = {victim.pid for _, victim in kills}, [], []
    came = [one for one in workers[SIZE:] if one.commits]
    asked = _asked(system.folder) if isinstance(system, Cordee) else {}
    for number, one in enumerate(came):
        since = asked.get(number, one.began)
        took.append(one.commits[0].at - since)
        others = [other for other in workers if other.pid not in {one.pid, *known} and other.began < one.began]
        times = commit_times(others or [other for other in workers if other.pid != one.pid])
        stood.append(stall_around(times, one.commits[0].at))
    return {
        "join_s": spread(took),
        "others_stood_still_for_a_join_beyond_a_step_s": spread(stood),
        "joined": f"{len(came)} of {len(kills)}",
    }


def _asked(folder: Path) -> dict[int, float]:
    """When Cordée began to start each replacement."""
    record = read_events(folder / "run" / "events.jsonl")
    times = [one.time for one in record if isinstance(one, WarningEvent) and "is started in the place" in one.message]
    return dict(enumerate(times))


def _proven(system: Cordee) -> Result:
    """What the record of our run proves, which has no ids of samples."""
    system.finish()
    result = json.loads((system.folder / "run" / "result.json").read_text())
    found = audit(read_events(system.folder / "run" / "events.jsonl"))
    return {
        "samples_lost": result["samples_lost"],
        "samples_repeated": result["samples_repeated"],
        "audit": "; ".join(found.proven) or str(found),
    }


# ------------------------------------------------------------- across hosts


def hosts(count: int, folder: Path) -> Result:
    """In a twin of three hosts with one worker each: a worker is killed, then a host is cut off."""
    folder.mkdir(parents=True)
    took: dict[str, list[float]] = {"kill worker": [], "cut": []}
    for number in range(count):
        out = folder / str(number)
        (logs := folder / f"logs-{number}").mkdir()
        words = [sys.executable, "-m", "cordee", "twin", "run", HERE / "losing_job.py", "--hosts", "3", "--out", out]
        words += ["--schedule", "at step 60: kill worker 1; at step 140: cut c"]
        words += ["--set", f"folder={logs}", "--set", "steps=260"]
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, timeout=300)
        if done.returncode:
            return {"left_out": done.stderr.strip().splitlines()[-1]}
        record = list(read_events(out / "events.jsonl"))
        steps = sorted(one.at for one in record if isinstance(one, StepEvent) and one.at)
        for fault in (one for one in record if isinstance(one, FaultEvent)):
            since = fault.time
            again = next(one.at for one in record if isinstance(one, RegroupEvent) and one.at and one.at > since)
            next_step = next(at for at in steps if at > again)
            kind = next(name for name in took if fault.what.startswith(name))
            took[kind].append(next_step - since - usual_step(steps))
    return {
        "hosts": "3 with one worker each, links without a limit",
        "killed_worker_to_next_step_beyond_a_step_s": spread(took["kill worker"]),
        "silent_host_to_next_step_beyond_a_step_s": spread(took["cut"]),
        "heartbeat_s": 3.0,
    }


# ------------------------------------------------------------- coordinator


def coordinator(count: int, folder: Path) -> Result:
    """What is left of a run, and what it does, when the process dies that all others depend on."""
    found: Result = {"after_s": AFTER_S}
    for name, kind in SYSTEMS.items():
        if why := kind.missing():
            found[name] = {"left_out": why}
            continue
        system = kind(folder / name)
        with system.running():
            time.sleep(2.0)
            before = {one.pid for one in system.living()}
            os.kill(system.coordinator, signal.SIGKILL)
            at = time.time()
            time.sleep(AFTER_S)
            workers = system.workers()
            times = commit_times(workers)
            later = [one for one in times if one > at + AFTER_S / 2]
            found[name] = {
                "workers_left": sum(alive(pid) for pid in before),
                "goes_on": bool(later),
                **({"stall_beyond_a_step_s": round(stall(times, at, at + AFTER_S), 3)} if later else {}),
            }
    return found


# ------------------------------------------------------------- overhead


def overhead(count: int, folder: Path) -> Result:
    """Two runs of the same job take turns: one that replaces lost workers, and one that does not.

    That a lost worker is noticed and the others go on cannot be switched off: for that see `overhead.py`, beside DDP by
    hand.
    """
    sys.path.append(str(HERE))
    from peers.figures import summary
    from peers.pace import Conductor
    from peers.pairs import take_pairs
    from peers.systems import cordee
    from peers.tasks import TASKS

    found: Result = {
        "ratio": "the step of a run without replace=true over that of one with it: below 1, being elastic costs"
    }
    for task in ("mlp", "cnn"):
        turns = []
        for number in range(2):
            (place := folder / f"{task}{number}").mkdir(parents=True)
            with contextlib.ExitStack() as stack:
                systems = contextlib.ExitStack()
                stack.enter_context(systems)
                conductor = stack.enter_context(Conductor(place))
                running = {}
                for side, plan in (("cordee", "replace=true"), ("peer", "auto")):
                    (own := place / side).mkdir()
                    running[side] = systems.enter_context(cordee(task, conductor.path, own, plan, side))
                conductor.gather(tuple(running), 2, lambda now=running: all(one.poll() is None for one in now.values()))
                pids = {side: process.pid for side, process in running.items()}
                turns.append(take_pairs(conductor, pids, TASKS[task].chunk, 4 * count))
        figures = summary(TASKS[task].chunk, turns)
        # Workers come from the warm server: what the processes of a side use is not known by its first one.
        found[task] = {name: figures[name] for name in figures if name != "ratios" and "processor" not in name}
    return found


PARTS: dict[str, Callable[[int, Path], Result]] = {
    "kill": kill,
    "hosts": hosts,
    "coordinator": coordinator,
    "overhead": overhead,
}
