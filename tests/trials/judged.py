"""One run with its faults, from the start to the verdict."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from cordee.core.eventlog import read_events
from cordee.core.events import JobEvent
from cordee.watch.audit.prove import audit
from harness import Run, distance, train
from trials.drawn import GATE, Case, Fault, Trial
from trials.hosts import Hosts
from trials.struck import Striker, Watched
from warmer import untraced

SETTINGS = {"epochs": "6", "delay": "0.01", "save_steps": "6", "awaits_at": str(GATE)}
RUN_S = 150.0
"""How long a run may take with its faults; one that takes longer hangs."""
ENDING_S = 40.0
"""How long the launchers of other hosts, and processes that were cut off, may take to end after it."""
ROUNDING = 1e-9
CLOSE_S = 0.002


@dataclass(frozen=True)
class Outcome:
    """What became of a run."""

    trial: Trial
    kinds: Counter[str]
    """The faults that struck, by kind."""
    struck: tuple[str, ...]
    """In words: which processes."""
    resumed: int
    """How often it had to be gone on with."""
    seconds: float
    wrong: tuple[str, ...] = field(default=())


class Trials:
    """Runs trials in a folder, each compared with the run of one process."""

    def __init__(self, folder: Path) -> None:
        """A reference is made when it is first needed."""
        self._folder = folder
        self._reference = cache(self._alone)

    def _alone(self, exact: bool, job: tuple[tuple[str, str], ...]) -> Run:
        out = self._folder / f"alone-{len(list(self._folder.glob('alone-*')))}"
        return train("steady", out, plan="exact=true" if exact else "auto", **{**SETTINGS, "delay": "0.0"}, **dict(job))

    def run(self, trial: Trial) -> Outcome:
        """The whole of it; its folder stays if something is wrong."""
        alone = self._reference(trial.case.same == "bits", trial.case.job)
        out, began = self._folder / f"run-{trial.seed}", time.monotonic()
        shutil.rmtree(out, ignore_errors=True)  # of a trial that was broken off
        for gate in self._folder.glob(f"struck-{trial.seed}-*"):
            gate.unlink()
        hosts = Hosts(trial.case, out, {**SETTINGS, **dict(trial.case.job)})
        untraced(out).touch()
        wrong: list[str] = []
        done: list[tuple[Fault, str]] = []
        with hosts.up():
            for start, faults in enumerate((trial.faults, trial.again, (), ())):
                watched = Watched(out)
                watched.skip()
                striker = Striker(faults, watched, hosts)
                gate = self._folder / f"struck-{trial.seed}-{start}"
                hosts.start(gate, trial.hosts if start else trial.case.hosts, resume=start > 0)
                wrong += follow(hosts, watched, striker, gate)
                wrong += still_there(hosts, watched) if not wrong else []
                done += striker.done
                if hosts.code() == 0 or wrong:
                    break
                if not striker.ended:
                    wrong.append(f"start {start} ended with code {hosts.code()}, though workers were left")
                    break
            else:
                wrong.append("it was resumed again and again")
        wrong += differences(Run(out), alone, trial.case) if not wrong else []
        if not wrong:
            shutil.rmtree(out)
            for log in self._folder.glob(f"{out.name}-*.log"):
                log.unlink()
        struck = tuple(f"{fault}: {whom}" for fault, whom in done)
        kinds = Counter(fault.kind for fault, _ in done)
        return Outcome(trial, kinds, struck, start, time.monotonic() - began, tuple(wrong))


def follow(hosts: Hosts, run: Watched, striker: Striker, gate: Path) -> list[str]:
    """Until the run has ended, strike; what is wrong."""
    deadline = time.monotonic() + RUN_S
    try:
        while hosts.code() is None:
            if time.monotonic() > deadline:
                return [f"the run hangs: nothing ended within {RUN_S:.0f} s, at step {run.step}"]
            run.look()
            if striker.look():
                gate.touch()
            time.sleep(CLOSE_S)
    finally:
        striker.relent()
        gate.touch()  # other hosts may go on without the first one
    run.look()
    return []


def still_there(hosts: Hosts, run: Watched) -> list[str]:
    """Launchers that do not end, and processes of the run that outlive it."""
    if lingering := hosts.lingering(ENDING_S):
        return [f"the launcher of host {', '.join(lingering)} did not end within {ENDING_S:.0f} s after the run"]
    deadline = time.monotonic() + ENDING_S
    while left := [process for process in run.seen if process.alive]:
        if time.monotonic() > deadline:
            return [f"processes {sorted(one.pid for one in left)} outlived the run by {ENDING_S:.0f} s"]
        time.sleep(0.05)
    return []


def differences(run: Run, alone: Run, case: Case) -> list[str]:
    """What is not as in the undisturbed run of one process, or not proven by the record."""
    wrong = []
    record = list(read_events(run.out / "events.jsonl"))
    found = audit(record)
    if not found.proven:
        wrong.append(f"audit: {[*found.findings, *found.missing]}")
    for name in ("steps", "epochs", "samples", "order_sha256"):
        if run.result[name] != alone.result[name]:
            wrong.append(f"{name}: {run.result[name]}, alone {alone.result[name]}")
    for name in ("samples_lost", "samples_repeated"):
        if run.result[name]:
            wrong.append(f"{name}: {run.result[name]}")
    if case.same == "samples":
        return wrong
    losses = {event["step"]: event["loss"] for event in run.of("step")}
    usual = {event["step"]: event["loss"] for event in alone.of("step")}
    if missing := sorted(usual.keys() - losses.keys()):
        # The line of a step goes through a worker and the coordinator, and may be lost with them: a start that began
        # after that step, with the state of it, has it anyway.
        begun = {one.steps for one in record if isinstance(one, JobEvent)}
        if not begun.issuperset(step for step in missing if step + 1 not in missing):
            wrong.append(f"steps {missing} are not on record")
    exact = case.same == "bits"
    tolerance = 0.0 if exact else ROUNDING
    for step, loss in losses.items():
        if abs(loss - usual[step]) > tolerance * abs(usual[step]):
            wrong.append(f"step {step}: loss {loss!r}, alone {usual[step]!r}")
            break
    if (far := distance(run, alone)) > tolerance:
        wrong.append(f"parameters differ by {far}")
    if exact and run.result["params_sha256"] != alone.result["params_sha256"]:
        wrong.append("params_sha256 differs")
    for part in ("validation", "test"):
        for name, value in alone.result[part].items():
            if not np.isclose(run.result[part].get(name, np.nan), value, rtol=0, atol=tolerance):
                wrong.append(f"{part} {name}: {run.result[part].get(name)}, alone {value}")
    return wrong
