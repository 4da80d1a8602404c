"""How a process joins its team: by our own launcher, or by finding its peers under another one."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from cordee.core.errors import RendezvousError, SecurityError, WaitedTooLong
from cordee.core.plan import Plan
from cordee.core.world import World
from cordee.group import links
from cordee.group.channel import Channel
from cordee.group.meeting import Meeting
from cordee.group.team import Team
from cordee.group.token import read_token
from cordee.group.wire import Address, Message, own_address_towards
from cordee.runtime.coordinator.hub import Hub
from cordee.train.jobfile import refuse_session


@dataclass(frozen=True)
class Joined:
    """A place on the team, and the hub if this process hosts it."""

    team: Team
    plan: Plan
    hub: Hub | None = None
    device: str = "cpu"
    launched: bool = False
    """Our own launcher's worker leaves the team at the end of the script; until then it may do more."""


_current: Joined | None = None


def set_current(joined: Joined | None) -> None:
    """Called by our launcher's worker before it runs the user's code."""
    global _current
    _current = joined


@dataclass(frozen=True)
class Asked:
    """What a run asks for under another launcher; with our own, the launcher says it."""

    deadline_s: float = 300.0
    """How long processes wait for each other, at the start too."""
    backend: str = "auto"
    record: bool = False
    """Rank 0 will read the hub's notices; otherwise they are dropped."""
    brief: Message | None = None
    """What rank 0 tells all others."""


def join(world: World, asked: Asked | None = None) -> Joined:
    """The place that our launcher made for this process; else the one that `world` says."""
    refuse_session()
    if _current is not None:
        return _current
    if world.size == 1:
        return Joined(Team(), Plan(), device=_device(world))
    return _join_foreign(world, asked or Asked())


def _join_foreign(world: World, asked: Asked) -> Joined:
    """Under torchrun, mpirun, Slurm, or by hand: rank 0 hosts the hub, the others find it."""
    one_host = world.local_size == world.size
    if not one_host and os.environ.get("CORDEE_TRUSTED_NETWORK") != "1":
        raise SecurityError(
            "this run spans several hosts. Our own connections are encrypted, but gloo's carry gradients in the clear. "
            "If the network is trusted, say so on every host: CORDEE_TRUSTED_NETWORK=1"
        )
    meeting = Meeting(world) if one_host else None
    hub = None
    try:
        if world.rank == 0:
            bind = Address("127.0.0.1", 0, secrets.token_hex(32)) if meeting else _off_host(world, _token_from_file())
            hub = Hub(bind, expected=world.size, heard=asked.record, brief=asked.brief)
            if meeting is not None:
                meeting.open(hub.address)
        channel, address = _connect(world, asked.deadline_s, hub, meeting)
        interface = "127.0.0.1" if one_host else own_address_towards(address.host, address.port)
        device = _device(world)
        team = _team(world, asked, channel, interface, device)
    except BaseException:
        if hub is not None:
            hub.close()
        raise
    finally:
        if meeting is not None:
            meeting.close()
    if not one_host:
        links.tell(team, world.host)
    return Joined(team, Plan(), hub, device)


def _connect(world: World, deadline_s: float, hub: Hub | None, meeting: Meeting | None) -> tuple[Channel, Address]:
    """A channel to rank 0's hub, as soon as that is there."""
    deadline = time.monotonic() + deadline_s
    while True:
        try:
            if hub is not None:
                address = hub.address
            else:
                address = meeting.find() if meeting is not None else _off_host(world, _token_from_file())
            return Channel(address, world.rank, world.host), address
        except (RendezvousError, OSError, ValueError) as error:
            if time.monotonic() > deadline:
                raise RendezvousError(
                    f"rank {world.rank} on {world.host} did not find rank 0 within {deadline_s:g} s: {error}"
                ) from error
            time.sleep(0.02)


def _team(world: World, asked: Asked, channel: Channel, interface: str, device: str) -> Team:
    """The first group, when all processes have come."""
    try:
        return Team(channel, interface=interface, deadline_s=asked.deadline_s, device=device, backend=asked.backend)
    except WaitedTooLong as error:
        channel.close()  # before the hub, whose end it would take for a lost launcher
        raise RendezvousError(
            f"rank {world.rank} waited {asked.deadline_s:g} s, but not all {world.size} processes have come that the "
            f"variables of {world.source} name: start every rank, with the same variables except its own place"
        ) from error


def _device(world: World) -> str:
    """A GPU where there is one; processes of one host take them in turn. CUDA_VISIBLE_DEVICES= says otherwise."""
    if not torch.cuda.is_available():
        return "cpu"
    device = f"cuda:{world.local_rank % torch.cuda.device_count()}"
    torch.cuda.set_device(device)
    return device


def _off_host(world: World, token: str) -> Address:
    """Beside the port of the other launcher, which is its own."""
    if world.master is None:
        raise RendezvousError(
            f"{world.source} did not say where rank 0 is: set MASTER_ADDR and MASTER_PORT on all hosts"
        )
    host, port = world.master
    return Address(host, port + 1, token, tls=True)


def _token_from_file() -> str:
    path = os.environ.get("CORDEE_TOKEN_FILE")
    if not path:
        raise SecurityError(
            "this run spans several hosts, so its processes must share a token: write one with "
            "`cordee token FILE`, copy the file to every host, and set CORDEE_TOKEN_FILE to its path"
        )
    return read_token(Path(path))
