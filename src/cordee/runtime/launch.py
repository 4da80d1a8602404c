"""What to start on this host, and with what: checked before anything is started, and told in the user's own words."""

from __future__ import annotations

import os
import resource
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cordee.core.errors import PlanError, UsageError
from cordee.core.machine import available_memory, usable_cores
from cordee.core.plan import Plan
from cordee.core.refusals import refuse_on_cpu
from cordee.core.words import plural
from cordee.diagnose.machine import find_compiler
from cordee.diagnose.number_format import NOTABLE, recall_format, try_format
from cordee.group.messages import Again, Running, Seat
from cordee.group.wire import LOOPBACK, Address
from cordee.runtime.coordinator.holders import Servers
from cordee.runtime.coordinator.joining import refuses_newcomers
from cordee.runtime.engines.choice import Chosen
from cordee.runtime.folder import former_settings, saved_step
from cordee.runtime.relay import Output
from cordee.runtime.rendezvous import Rendezvous
from cordee.runtime.resources import allot, check_room, devices
from cordee.runtime.spec import Target, WorkerSpec
from cordee.runtime.wording import COMMAND, Wording

JOBS_ALONE = (
    "{given} is for jobs (cordee train): what a script of your own holds, and where it stands, only the script "
    "knows. Take it out of the plan: when a worker is lost, the others continue without it"
)
DEADLINE_S = 300.0
"""How long workers wait for each other unless told otherwise."""


@dataclass(frozen=True)
class Continued:
    """What a start continues by itself."""

    reached: int
    """The last step that was committed before."""
    lost: str
    """Why the start before ended."""


@dataclass(frozen=True)
class Launch:
    """What to start on this host, and with what."""

    target: Target
    workers: int
    plan: Plan
    out: Path
    resume: bool = False
    threads: int | None = None
    cores: tuple[int, ...] | None = None
    """Pin the workers to these cores."""
    deadline_s: float = DEADLINE_S
    device: str = "auto"
    taken_over: dict[str, str] = field(default_factory=dict)
    """Settings of the run that is resumed, which were not given anew; the target holds them already."""
    rendezvous: Rendezvous | None = None
    """Where several hosts meet."""
    wording: Wording = COMMAND
    output: Output = field(default_factory=Output)
    """Where the output of the workers goes, if not to our own."""
    given: Mapping[str, object] = field(default_factory=dict)
    """Options that the user gave, besides the folder."""
    continued: Continued | None = None
    """What this start continues without being asked; None: the user has started it."""
    engine: Chosen | None = None
    """What gives places to `workers` on other machines, or gave this place; None: neither."""
    trusted_network: bool = False
    """Whether gradients may travel unencrypted to the places of the engine."""
    enters: bool = False
    """Whether this host enters a run that has begun: what is trained, its coordinator says."""

    @property
    def nodes(self) -> int:
        """How many hosts the run has."""
        return 1 if self.rendezvous is None else self.rendezvous.nodes

    def address(self) -> Address:
        """Where the coordinator listens."""
        if self.rendezvous is None or self.nodes == 1:  # no other host is to come
            return Address(LOOPBACK, 0, secrets.token_hex(32))
        return self.rendezvous.address(self.wording)

    @property
    def _threads(self) -> int | None:
        """Of each worker; None: as many as its part of the cores, which exact=true does not follow."""
        return 1 if self.threads is None and self.plan.exact else self.threads

    def check(self) -> None:
        """Refuse what cannot be started, before anything is."""
        if self.target.kind == "script":
            refuse_own_loop(self.plan)
        check_deadline(self.deadline_s, self.wording)
        if self.workers == 0:
            if self.engine is None:
                self._check_storing()
            return
        cores = self.cores or usable_cores()
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        check_room(self.workers, len(cores), available_memory(), files, self.wording)
        allot(self.workers, cores, self._threads, self.wording)
        devices(self.workers, self.device, self.wording)
        if self.nodes == 1:  # of several hosts it is not known yet how many workers they have
            self.plan.check(self.workers)

    def check_room(self, workers: int) -> None:
        """Refuse so many workers in all on this host, while the run trains, if there is no room for them."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        more = workers - self.workers
        check_room(more, len(self.cores or usable_cores()), available_memory(), files, self.wording)

    def _check_storing(self) -> None:
        """Refuse a host without workers where no other host has any, or nothing is to be stored."""
        given = self.wording.option("workers", 0)
        if self.nodes == 1:
            where = f"{self.wording.option('rendezvous')} and {self.wording.option('nodes')}"
            raise UsageError(
                f"{given}: a host without workers holds parameters for other hosts, but this one is alone: at least 1 "
                f"is needed, or {where}, where other hosts have workers"
            )
        if self.plan.sync != "server":
            raise UsageError(
                f"{given}: a host without workers holds parameters, but under sync={self.plan.sync} the workers hold "
                f"them. Set sync=server in the plan, or give this host at least 1 worker"
            )

    @property
    def takes_back(self) -> bool:
        """Whether an evicted worker whose process continues comes in again; with replace=true its place is filled."""
        refuses = refuses_newcomers(self.plan, self.target.kind) or self.target.trial is not None
        return not (self.plan.replace or refuses)

    def entering(self, run: Running | None) -> Launch:
        """What is trained by the run that this host enters, if it enters one; refused if it cannot be trained here."""
        if not self.enters or run is None:
            return self
        if self.engine is not None:  # it has all of it from the first host
            return replace(self, resume=False)
        path = self.target.path or run.job
        if not Path(path).is_file():
            raise UsageError(
                f"the run trains {run.job}, and there is no such file here: copy it to this host, or name it with "
                f"{self.wording.option('job')}"
            )
        target = Target("job", path, run.settings)
        launch = replace(self, target=target, plan=Plan.parse(run.plan), deadline_s=run.deadline_s)
        launch.check()
        launch.check_formats(lambda message: None)
        return launch

    def servers(self, counts: Sequence[int]) -> Servers:
        """The parameter servers that the plan asks for, on hosts with so many workers; refused if none has any."""
        if not any(counts):
            raise UsageError(
                f"all {len(counts)} hosts were started with {self.wording.option('workers', 0)}, so none would train: "
                "give at least one of them workers"
            )
        if self.plan.sync != "server":
            return Servers()
        first_holds = self.engine is None  # else it is wherever the user gave the command
        return Servers.of(self.plan.servers, backups=self.plan.backups, workers=counts, first_holds=first_holds)

    def told(self, settings: Mapping[str, str]) -> Launch:
        """With settings that the run had before; what was given anew stays as it was given."""
        taken = {name: value for name, value in settings.items() if name not in self.target.settings}
        target = replace(self.target, settings={**taken, **self.target.settings})
        return replace(self, target=target, taken_over={**self.taken_over, **taken})

    def taking_over(self) -> Launch:
        """A resumed run goes on with the settings that its folder remembers."""
        if not self.resume or self.target.kind != "job":
            return self
        return self.told(former_settings(self.out))

    def going_on(self, left: int = 0) -> str:
        """How to go on with this run from its last checkpoint, in the user's own words; empty if there is none.

        `left`: so many workers are left of a replica that lay over more; how to go on with these is said too.
        """
        step = saved_step(self.out)
        if step is None or self.target.kind == "script" or not self.wording.way_on:
            return ""
        said = f"to go on after step {step}: {self.again()}"
        plan = self.plan.on_fewer(left)
        split = self.plan.shape(left + 1).size > 1  # of all hosts there were at least so many
        if not (left and split) or plan.refusals(left):
            return said
        if self.nodes > 1:  # which hosts are left, and with how many workers, is not known here
            options = (self.wording.option(name) for name in ("nodes", "workers"))
            return (
                f"{said}; on {plural(left, 'worker')}: the same on each host that is left, with "
                f"{self.wording.option('plan', str(plan))}, and with {' and '.join(options)} as they are now"
            )
        fewer = {**self.given, "workers": left, "plan": str(plan)}
        return f"{said}; on {plural(left, 'worker')}: {replace(self, given=fewer).again()}"

    def again(self) -> str:
        """The command, or the call, that resumes this run as it was started. Its folder remembers the settings."""
        given = {"out": str(self.out), **self.given, "resume": True}
        if self.wording.python:
            job = repr(self.target.path) if self.target.kind == "job" else "job"
            return f"cordee.train({', '.join([job, *(self.wording.option(*one) for one in given.items())])})"
        words = [word for name, value in given.items() for word in self.wording.words(name, value)]
        return shlex.join(["cordee", "train", self.target.path, *words])

    def check_formats(self, say: Callable[[str], None]) -> None:
        """Refuse what the plan asks of the devices and does not work here, say what would be slower.

        Called before anything loads torch for the workers: some formats need variables that are read then.
        """
        if self.workers == 0:  # servers compute in the format of what they hold
            return
        threads, _ = allot(self.workers, self.cores or usable_cores(), self._threads)[0]
        precision, device = self.plan.precision, devices(self.workers, self.device)[0]
        if self.plan.compile and device == "cpu":
            wanted, found = find_compiler()
            if not found:
                raise PlanError(
                    f"compile=true needs a C++ compiler on a CPU, and there is no {wanted or 'g++ or clang++'}: "
                    "install one (on Debian and Ubuntu: g++), name it in the variable CXX, or leave compile out"
                )
        refuse_on_cpu(self.plan.offload, device)
        if precision == "tf32" and device == "cpu":
            raise PlanError(
                "plan key precision=tf32 is a format of NVIDIA GPUs (Ampere and later), but this run computes on the "
                "CPU: leave precision out"
            )
        if precision in ("fp32", "tf32"):  # a GPU that does not know tf32 computes in fp32
            return
        trial = recall_format(precision, device, threads=threads)
        if trial is None:
            say(f"measuring once whether {precision} works here and is faster than fp32")
            trial = try_format(precision, device, threads=threads)
        if not trial.works:
            raise PlanError(trial.sentence)
        if trial.speed * NOTABLE <= 1 or trial.environment:
            say(trial.sentence)
        os.environ.update(trial.environment)

    def spec(self, hub: Address, interface: str, seat: Seat) -> WorkerSpec:
        """What a worker of this host needs to know; `interface` is the address that it binds to."""
        local = seat.world.local_rank
        if seat.serves:
            local = 0
        threads, cores = allot(max(1, self.workers), self.cores or usable_cores(), self._threads)[local]
        return WorkerSpec(
            worker=seat.worker,
            target=self.target,
            plan=self.plan,
            out=str(self.out.absolute()),
            resume=self.resume,
            hub=hub,
            interface=interface,
            threads=1 if seat.serves else threads,
            cores=() if self.cores is None or seat.serves else cores,
            folder=os.getcwd(),
            environment={**os.environ, **seat.world.to_env()},
            deadline_s=self.deadline_s,
            device="cpu" if seat.serves else devices(self.workers, self.device)[local],
            joins=seat.joins,
        )


def check_deadline(seconds: float, wording: Wording) -> None:
    """Refuse what leaves workers no time to wait for each other."""
    if seconds <= 0:
        raise UsageError(f"{wording.option('deadline', seconds)}: a number of seconds above 0 is needed")


def refuse_own_loop(plan: Plan) -> None:
    """Refuse what starts workers in the middle of a run, for a loop of the user's own."""
    for given, wanted in (("replace=true", plan.replace), (f"recover={plan.recover}", plan.recover != "ask")):
        if wanted:
            raise UsageError(JOBS_ALONE.format(given=given))


def continued(launch: Launch, again: Again, node: int, why: Continued) -> Launch:
    """What to start on the host with this place, in a run that continues."""
    meeting = launch.rendezvous and replace(launch.rendezvous, nodes=again.nodes)
    return replace(
        launch,
        workers=again.workers[node],
        plan=Plan.parse(again.plan),
        resume=True,
        rendezvous=meeting,
        continued=why,
        enters=False,
    )
