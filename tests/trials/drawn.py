"""Which faults befall which run: values, drawn by a seed. Nothing here touches a process.

A run is one of `CASES` on some hosts. Each of its faults comes when a step is on record, or when something happens
after that, and strikes processes by their role. A role names a row of `ROLES` in `struck.py`: another kind of process
is another row there, and one more word here.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

STEPS, GATE = 90, 76
"""Steps of a run; at the gate it waits until all faults have struck."""
FIRST, LAST = 3, 68
"""Most faults are drawn for these steps."""
LATE = (84, 91)
"""Some for these, which the run does not wait for: they fall into its end, or come too late."""
LONG_S = {"worker": (0.15, 0.6), "server": (0.15, 0.6), "launcher": (3.5, 4.5), "host": (3.5, 4.5)}
"""Pauses of these roles after which the others have gone on without them."""
SHORT_S = {
    "worker": (0.01, 0.06),
    "server": (0.01, 0.06),
    "launcher": (0.1, 2.0),
    "host": (0.1, 2.0),
    "first launcher": (0.01, 2.5),
    "coordinator": (0.01, 2.5),
}
"""Pauses after which a process goes on as if nothing had been; on a busy machine workers and servers may be evicted."""
CUT_S = ((0.2, 0.8), (4.0, 5.0))
"""How long a host is cut off: so that it is not missed, and so that it is."""

EVENTS = ("failure", "failure", "regroup", "regroup", "checkpoint", "epoch", "joined", "worker")
"""What a kill may wait for: that others regroup, save, evaluate, let others in, or start."""
ENDS = ("first launcher", "first starter", "all workers")
"""Roles without which a run cannot go on, if they are killed."""

SCALE = "scale"
"""Not a fault: what may come between them, as may whatever befalls workers that come in or leave."""

Same = Literal["same", "bits", "samples"]


@dataclass(frozen=True)
class Case:
    """A plan on some hosts, and what its result has in common with that of one process."""

    name: str
    plan: str
    hosts: tuple[int, ...]
    """Workers of each."""
    same: Same = "same"
    """Losses and parameters up to rounding, bit by bit, or the samples alone."""
    job: tuple[tuple[str, str], ...] = ()
    """Settings of the job, besides those of all cases."""
    roles: tuple[str, ...] = ("worker",)
    twin: bool = False
    """Whether hosts have networks of their own."""
    replica: int = 1
    """Workers that hold one copy of the model together."""
    fixed: bool = False
    """Whether it can only be resumed on as many workers."""
    recovers: bool = False
    """Whether it continues by itself if no whole replica is left."""
    scales: bool = False
    """Whether it is given other numbers of workers in between."""

    @property
    def workers(self) -> int:
        """Of all hosts."""
        return sum(self.hosts)

    @property
    def replaces(self) -> bool:
        """Whether lost workers are replaced."""
        return "replace=true" in self.plan


PLAIN = (("batchnorm", "False"),)
SERVED = ("worker", "server", "server")
REPLACED = ("worker", "newcomer", "all workers")
FAR = ("worker", "worker", "launcher", "starter", "host")
HERE = ("worker", "worker", "newcomer", "coordinator")
CASES = (
    Case("allreduce", "auto", (5,), roles=("worker", "worker", "coordinator"), scales=True),
    Case("allreduce, replaced", "replace=true", (3,), roles=(*HERE, "first launcher"), scales=True),
    Case("gloo, unequal shares", "backend=gloo,replace=true,proportions=3:2:1", (3,), fixed=True),
    Case("two hosts", "replace=true", (2, 2), roles=(*FAR, "coordinator", "first launcher"), scales=True),
    Case("three hosts", "auto", (2, 1, 1), roles=(*FAR, "coordinator")),
    Case("server", "sync=server,servers=2", (3,), roles=(*SERVED, "coordinator"), scales=True),
    Case("server, replaced", "sync=server,servers=2,replace=true", (3,), roles=(*SERVED, "newcomer"), scales=True),
    Case("server on two hosts", "sync=server,servers=2", (2, 2), roles=(*SERVED, "launcher", "host")),
    Case("stale", "sync=server,mode=stale,staleness=2,replace=true", (3,), "samples", roles=SERVED),
    Case("local", "sync=local,local_steps=4,replace=true", (3,), "samples", roles=HERE, scales=True),
    Case("local, behind", "sync=local,local_steps=4,merge=behind,replace=true", (3,), "samples"),
    Case("exact", "exact=true,replace=true", (3,), "bits", (*PLAIN, ("drop", "0.2")), HERE, scales=True),
    Case("exact, two hosts", "exact=true,replace=true", (2, 1), "bits", (*PLAIN, ("drop", "0.2")), FAR),
    Case("tensor x data", "tensor=2", (6,), job=PLAIN, roles=("worker", "worker", "coordinator"), replica=2),
    Case("shard x data", "shard=params,shards=2", (6,), job=PLAIN, replica=2),
    Case("tensor, recovered", "tensor=2,recover=full,copy_every=4", (4,), job=PLAIN, replica=2, recovers=True),
    Case("shard, recovered", "shard=params,recover=fewer", (3,), job=PLAIN, replica=3, recovers=True),
    Case("replaced, recovered", "replace=true,recover=full,copy_every=2", (2,), roles=REPLACED, recovers=True),
    Case("twin", "replace=true", (1, 1, 2), roles=(*FAR, "link", "link"), twin=True),
    Case("twin, server", "sync=server,servers=2", (1, 1, 1), roles=("worker", "server", "host", "link"), twin=True),
)


@dataclass(frozen=True)
class Fault:
    """What is done to some processes, or to a link, and when."""

    step: int
    delay_s: float
    deed: Literal["kill", "pause", "cut", "scale"]
    roles: tuple[str, ...]
    picks: tuple[float, ...]
    """Which of the processes of each role, as a part of them."""
    lasts_s: float = 0.0
    """Of a pause or a cut."""
    event: str = ""
    """What it waits for after the step: the kind of an event on record."""

    @property
    def kind(self) -> str:
        """What faults are counted by."""
        if self.deed == SCALE:
            return SCALE
        at_once = f"{len(self.roles)} at once: " if len(self.roles) > 1 else ""
        return f"{self.deed} {at_once}{' and '.join(sorted(self.roles))}"

    def __str__(self) -> str:
        when = f"at step {self.step}" + (f", after the next {self.event}" if self.event else "")
        lasts = f" for {self.lasts_s:.2f} s" if self.lasts_s else ""
        picks = " ".join(f"{pick:.2f}" for pick in self.picks)
        return f"{when} + {1e3 * self.delay_s:.0f} ms: {self.kind}{lasts} ({picks})"


@dataclass(frozen=True)
class Trial:
    """A run, and what befalls it."""

    seed: int
    case: Case
    faults: tuple[Fault, ...]
    again: tuple[Fault, ...] = ()
    """When it is resumed."""
    hosts: tuple[int, ...] = ()
    """Workers of each host then."""


def draw(seed: int, cases: tuple[Case, ...] = CASES) -> Trial:
    """The run of a seed: cases take turns, so that all of them come up equally often."""
    lot, case = random.Random(seed), cases[seed % len(cases)]
    faults = _sequence(lot, case, FIRST, lot.randrange(3, 9))
    if lot.random() < 0.25:  # no worker, or no coordinator, is left
        step, role = max(faults[-1].step, 15), lot.choice(ENDS)  # once there is a checkpoint
        faults[-1] = Fault(step, lot.uniform(0.0, 0.03), "kill", (role,), (lot.random(),))
    again = _sequence(lot, case, GATE - 10, lot.randrange(0, 3))
    other = case.replica == 1 and len(case.hosts) == 1 and not case.fixed
    return Trial(seed, case, tuple(faults), tuple(again), (lot.randrange(1, 5),) if other else case.hosts)


def _sequence(lot: random.Random, case: Case, first: int, count: int) -> list[Fault]:
    """Faults from a step on, in their order: some when workers start, some at the end of the run."""
    steps = sorted(lot.sample(range(first, max(LAST, first + 8)), count))
    faults = []
    for number, step in enumerate(steps):
        if case.scales and lot.random() < 0.4:
            faults.append(Fault(step, lot.uniform(0.0, 0.04), SCALE, ("run",), (lot.random(),)))
        faults.append(_drawn(lot, case, step, first=number == 0))
    if lot.random() < 0.15:
        faults.insert(0, Fault(0, lot.uniform(0.0, 0.4), "kill", ("worker",), (lot.random(),), event="worker"))
    if lot.random() < 0.3:
        role = lot.choice(("worker", "coordinator", *(one for one in case.roles if one not in ENDS)))
        late = Fault(lot.randrange(*LATE), lot.uniform(0.0, 0.4), "kill", (role,), (lot.random(),))
        faults += [] if role == "link" else [late]
    return faults


def _drawn(lot: random.Random, case: Case, step: int, *, first: bool) -> Fault:
    """`first`: nothing has happened yet that it could follow."""
    role, delay_s, event = lot.choice(case.roles), lot.uniform(0.0, 0.04), ""
    role = "worker" if first and role in ("newcomer", "all workers") else role
    if role == "newcomer":  # while it starts, or when it has just come in
        return Fault(
            step, lot.uniform(0.0, 0.3), "kill", (role,), (lot.random(),), event=lot.choice(("worker", "joined"))
        )
    if role == "all workers":
        return Fault(step, delay_s, "kill", (role,), (lot.random(),))
    if role == "link":
        return Fault(step, delay_s, "cut", (role,), (lot.random(),), lot.uniform(*lot.choice(CUT_S)))
    if role == "coordinator" and lot.random() < 0.6:
        return Fault(step, delay_s, "kill", (role,), (lot.random(),))
    if role in ("coordinator", "first launcher") or (role != "starter" and lot.random() < 0.35):
        short = role in ("coordinator", "first launcher") or lot.random() < 0.3
        lasts_s = lot.uniform(*(SHORT_S if short else LONG_S)[role])
        return Fault(step, delay_s, "pause", (role,), (lot.random(),), lasts_s)
    roles = [role]
    while len(roles) < min(3, case.workers - 1) and lot.random() < 0.3:
        roles.append(lot.choice([one for one in case.roles if one in ("worker", "server")] or [role]))
    if not first and lot.random() < 0.35:
        event, delay_s = lot.choice(EVENTS), lot.uniform(0.0, 0.08)
    return Fault(step, delay_s, "kill", tuple(roles), tuple(lot.random() for _ in roles), event=event)
