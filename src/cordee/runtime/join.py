"""How a process comes into its run, whatever started it, and the one place where its session is put together."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from cordee.core.errors import PlanError, RendezvousError, SecurityError, WaitedTooLong
from cordee.core.events import PlanEvent, WarningEvent
from cordee.core.plan import Plan
from cordee.core.world import World
from cordee.group import links
from cordee.group.channel import Channel
from cordee.group.meeting import Meeting
from cordee.group.team import Team
from cordee.group.token import read_token
from cordee.group.wire import LOOPBACK, Address, own_address_towards
from cordee.runtime.coordinator.hub import Hub
from cordee.runtime.launch import DEADLINE_S, check_deadline, refuse_own_loop
from cordee.runtime.resources import devices
from cordee.runtime.wording import PYTHON
from cordee.train.jobfile import refuse_session
from cordee.train.session import Session
from cordee.train.stepper import Stepper


@dataclass
class Entry:
    """The way of this process into its run: it is connected, or alone, and has not met the other workers yet."""

    world: World
    channel: Channel | None = None
    """None: alone."""
    device: str = "cpu"
    interface: str = LOOPBACK
    plan: Plan = field(default_factory=Plan)
    """The launcher's, as is the deadline; a script may have others."""
    deadline_s: float = DEADLINE_S
    hub: Hub | None = None
    backend: str = "auto"
    """What the team was formed with."""
    _team: Team | None = None

    def meet(self, plan: Plan | None = None) -> Team:
        """The team, which forms at the first call: `plan` says how workers are connected."""
        if self._team is None:
            chosen = plan or self.plan
            try:
                self._team = Team(
                    self.channel,
                    interface=self.interface,
                    deadline_s=self.deadline_s,
                    device=self.device,
                    backend=chosen.backend,
                    grows=chosen.replace,
                    shape=chosen.shape(self.world.size),
                )
            except WaitedTooLong as error:
                raise self._too_few(error) from error
            self.backend = chosen.backend
            if self.interface != LOOPBACK and not self._team.channel.joining:
                links.tell(self._team, self.world.host)
        self._team.membership.deadline_s = self.deadline_s
        return self._team

    def assemble(self, plan: Plan | None = None, *, seed: int = 0) -> Stepper:
        """What a loop or a session trains with, by the launcher's plan if by no other."""
        chosen = plan or self.plan
        chosen.check(self.world.size)
        if chosen.sync == "server":
            self._check_servers(chosen)
        team = self.meet(chosen)
        if chosen.shape(self.world.size) != team.lines.shape:
            given = f"pipeline={chosen.pipeline},shard={chosen.shard},shards={chosen.shards},tensor={chosen.tensor}"
            raise PlanError(f"{given} comes too late: the first session connected the workers otherwise")
        return Stepper(team, plan=chosen, seed=seed, device=self.device)

    def _check_servers(self, plan: Plan) -> None:
        """Parameter servers are processes, which only our own launcher starts, by its plan."""
        if self.channel is None or self.world.is_foreign:
            raise PlanError(
                "sync=server needs processes that hold the parameters, which only cordee train and cordee run start: "
                f"start this by them, not by {'Python' if self.channel is None else self.world.source} alone"
            )
        if (self.plan.sync, self.plan.servers) != (plan.sync, plan.servers):
            raise PlanError(
                f"sync=server,servers={plan.servers} comes too late in the script: its servers are started with the "
                f"run. Give it there: cordee run --plan sync=server,servers={plan.servers}"
            )

    def _too_few(self, error: WaitedTooLong) -> Exception:
        """Our own launcher sees by itself whose process has not come."""
        if not self.world.is_foreign or self.channel is None:
            return error
        self.channel.close()  # before the hub, whose end it would take for a lost launcher
        return RendezvousError(
            f"rank {self.world.rank} waited {self.deadline_s:g} s, but not all {self.world.size} processes have come "
            f"that the variables of {self.world.source} name: start every rank, with the same variables except its own "
            "place"
        )


_current: Entry | None = None


def set_current(entry: Entry) -> None:
    """Called by our launcher's worker before it runs the user's code."""
    global _current
    _current = entry


def session(*, plan: Plan | str | None = None, seed: int = 0, deadline: float | None = None) -> Session:
    """My session: of the run that started this process (cordee run, torchrun, mpirun, Slurm), or alone.

    `plan` and `deadline` (seconds that workers wait for each other) take the place of what `cordee run` was given.
    """
    refuse_session()
    chosen = Plan.parse(plan) if plan is not None else None
    check_deadline(DEADLINE_S if deadline is None else deadline, PYTHON)
    entry = _current or enter(World.from_env(), deadline_s=DEADLINE_S if deadline is None else deadline, plan=chosen)
    entry.deadline_s = entry.deadline_s if deadline is None else deadline
    stepper = entry.assemble(chosen, seed=seed)
    refuse_own_loop(stepper.plan)
    stepper.reporter.tell(PlanEvent(stepper.plan.to_dict(), stepper.plan.faithfulness))
    if stepper.plan.backend != entry.backend:
        late = f"backend={stepper.plan.backend} comes too late: the first session of this script connected the workers"
        stepper.reporter.tell(WarningEvent(late))
    return Session(stepper, stay=_current is not None)


def enter(
    world: World,
    *,
    deadline_s: float = DEADLINE_S,
    plan: Plan | None = None,
    device: str = "auto",
    record: bool = False,
    settings: dict[str, str] | None = None,
) -> Entry:
    """Alone, or under torchrun, mpirun, Slurm, or by hand: then rank 0 hosts the hub, and the others find it.

    Processes wait for each other until the deadline at the start too. `record`: rank 0 will read the hub's notices.
    It tells all others the `settings` of a run that is resumed.
    """
    if world.size == 1:
        return Entry(world, device=_device(world, device), plan=plan or Plan())
    one_host = world.local_size == world.size
    if not one_host and os.environ.get("CORDEE_TRUSTED_NETWORK") != "1":
        raise SecurityError(
            "this run spans several hosts. Our own connections are encrypted, but gloo's carry gradients in the clear. "
            "If the network is trusted, say so on every host: CORDEE_TRUSTED_NETWORK=1"
        )
    meeting = Meeting(world) if one_host else None
    there = Address(LOOPBACK, 0, secrets.token_hex(32)) if one_host else _off_host(world)
    hub = None
    try:
        if world.rank == 0:
            hub = Hub(there, expected=world.size, heard=record, settings=settings)
            there = hub.address
            if meeting is not None:
                meeting.open(there)
        find = meeting.find if meeting is not None and hub is None else lambda: there
        channel, address = _connect(world, deadline_s, find)
        interface = LOOPBACK if one_host else own_address_towards(address.host, address.port)
        entry = Entry(world, channel, _device(world, device), interface, plan or Plan(), deadline_s, hub)
        entry.meet()  # until then the others must find the meeting
        return entry
    except BaseException:
        if hub is not None:
            hub.close()
        raise
    finally:
        if meeting is not None:
            meeting.close()


def _connect(world: World, deadline_s: float, find: Callable[[], Address]) -> tuple[Channel, Address]:
    """A channel to rank 0's hub, as soon as that is there."""
    deadline = time.monotonic() + deadline_s
    while True:
        try:
            address = find()
            return Channel(address, world.rank, world.host), address
        except (RendezvousError, OSError, ValueError) as error:
            if time.monotonic() > deadline:
                raise RendezvousError(
                    f"rank {world.rank} on {world.host} did not find rank 0 within {deadline_s:g} s: {error}"
                ) from error
            time.sleep(0.02)


def _device(world: World, wanted: str) -> str:
    """A GPU where there is one; processes of one host take them in turn. CUDA_VISIBLE_DEVICES= says otherwise."""
    if wanted != "auto":
        device = devices(world.local_size, wanted)[world.local_rank]
    elif torch.cuda.is_available():
        device = f"cuda:{world.local_rank % torch.cuda.device_count()}"
    else:
        return "cpu"
    if device != "cpu":
        torch.cuda.set_device(device)
    return device


def _off_host(world: World) -> Address:
    """Beside the port of the other launcher, which is its own."""
    path = os.environ.get("CORDEE_TOKEN_FILE")
    if not path:
        raise SecurityError(
            "this run spans several hosts, so its processes must share a token: write one with "
            "`cordee token FILE`, copy the file to every host, and set CORDEE_TOKEN_FILE to its path"
        )
    if world.master is None:
        raise RendezvousError(
            f"{world.source} did not say where rank 0 is: set MASTER_ADDR and MASTER_PORT on all hosts"
        )
    host, port = world.master
    return Address(host, port + 1, read_token(Path(path)), tls=True)
