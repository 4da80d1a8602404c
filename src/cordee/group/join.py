"""How a process gets onto the rope: by our own launcher, or by finding its peers under somebody else's."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from cordee.core.errors import CordeeError, RendezvousError, SecurityError
from cordee.core.plan import Plan
from cordee.core.world import World
from cordee.group import links
from cordee.group.channel import Channel
from cordee.group.hub import Hub
from cordee.group.rope import Rope
from cordee.group.token import read_token
from cordee.group.wire import Address, Message

PATIENCE_S = 120.0
"""How long the processes of a run wait for each other at the start."""


@dataclass(frozen=True)
class Joined:
    """A place on the rope, and the hub if this process hosts it."""

    rope: Rope
    plan: Plan
    hub: Hub | None = None
    device: str = "cpu"
    launched: bool = False
    """Our own launcher's worker leaves the rope at the end of the script; until then it may do more."""


_current: Joined | None = None
_refusal: CordeeError | None = None


@contextlib.contextmanager
def refusing(error: CordeeError) -> Iterator[None]:
    """Raise this to whoever asks for a place in here: code that is only looked at must not train."""
    global _refusal
    former, _refusal = _refusal, error
    try:
        yield
    finally:
        _refusal = former


def set_current(joined: Joined | None) -> None:
    """Called by our launcher's worker before it runs the user's code."""
    global _current
    _current = joined


def join(world: World, *, record: bool = False, brief: Message | None = None) -> Joined:
    """The place that our launcher made for this process; else the one that `world` says.

    `record`: rank 0 will read the hub's notices; otherwise they are dropped. `brief`: what rank 0 tells all others.
    """
    if _refusal is not None:
        raise _refusal
    if _current is not None:
        return _current
    if world.size == 1:
        return Joined(Rope(), Plan(), device=_device(world))
    return _join_foreign(world, record, brief)


def _join_foreign(world: World, record: bool, brief: Message | None) -> Joined:
    """Under torchrun, mpirun, Slurm: rank 0 hosts the hub, the others find it."""
    one_host = world.local_size == world.size
    if not one_host and os.environ.get("CORDEE_TRUSTED_NETWORK") != "1":
        raise SecurityError(
            "this run spans several hosts. Our own connections are encrypted, but gloo's carry gradients in the clear. "
            "If the network is trusted, say so on every host: CORDEE_TRUSTED_NETWORK=1"
        )
    meeting = _meeting_file(world)
    hub = None
    if world.rank == 0:
        token = secrets.token_hex(32) if one_host else _token_from_file()
        bind = Address("127.0.0.1", 0, token) if one_host else _off_host(world, token)
        hub = Hub(bind, expected=world.size, heard=record, brief=brief)
        if one_host:
            _write_private(meeting, {"port": hub.address.port, "token": token})
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            address = hub.address if hub else _find(world, meeting, one_host)
            channel = Channel(address, world.rank, world.host)
            break
        except (RendezvousError, OSError, ValueError) as error:
            if time.monotonic() > deadline:
                raise RendezvousError(
                    f"rank {world.rank} on {world.host} did not find rank 0 within {PATIENCE_S:.0f} s: {error}"
                ) from error
            time.sleep(0.02)
    interface = "127.0.0.1" if one_host else own_address_towards(address.host, address.port)
    device = _device(world)
    rope = Rope(channel, interface=interface, device=device)
    if not one_host:
        links.tell(rope, world.host)
    if hub is not None:
        with contextlib.suppress(OSError):
            meeting.unlink()
    return Joined(rope, Plan(), hub, device)


def _device(world: World) -> str:
    """A GPU where there is one; processes of one host take them in turn. CUDA_VISIBLE_DEVICES= says otherwise."""
    if not torch.cuda.is_available():
        return "cpu"
    device = f"cuda:{world.local_rank % torch.cuda.device_count()}"
    torch.cuda.set_device(device)
    return device


def _find(world: World, meeting: Path, one_host: bool) -> Address:
    if not one_host:
        return _off_host(world, _token_from_file())
    found = json.loads(meeting.read_text())
    return Address("127.0.0.1", int(found["port"]), str(found["token"]))


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


def _meeting_file(world: World) -> Path:
    """Where the processes of one host meet: they have the same parent, whatever launched them."""
    folder = Path(tempfile.gettempdir()) / f"cordee-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        raise SecurityError(f"{folder} is not private to this user: remove it")
    return folder / f"meeting-{world.source}-{os.getppid()}.json"


def _write_private(path: Path, content: dict[str, object]) -> None:
    temporary = path.with_suffix(f".{os.getpid()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        json.dump(content, file)
    temporary.replace(path)


def own_address_towards(host: str, port: int) -> str:
    """This host's address on the route to another one; nothing is sent to find it out."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise CordeeError(f"no route to {host}: {error}") from error
