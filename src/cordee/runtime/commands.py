"""The side of a command that reaches a run in progress: finds it by its folder, asks, and returns the answer."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec

from cordee.core.errors import CordeeError, RendezvousError, SecurityError, UsageError, error_named
from cordee.group.messages import Answer, Command, Who
from cordee.group.wire import LOOPBACK, Address, connect
from cordee.runtime.coordinator.control import FILE, Way
from cordee.runtime.folder import LOCK, is_held

ANSWER_S = 30.0
"""How long a run may take to answer; it does so in its loop, several times per second."""


def ask(folder: Path, command: Command) -> str:
    """What the run in this folder does about a command; raises why it does nothing."""
    way = _find(folder)
    address = Address(LOOPBACK, way.port, way.secret)
    try:
        connection, _ = connect(address, Who("command", socket.gethostname()))
    except (RendezvousError, SecurityError) as error:
        raise UsageError(
            f"the run in {folder} cannot be reached, though its process {way.pid} is there: {error}. Give the command "
            "in the container and network that the run is in"
        ) from error
    try:
        connection.sock.settimeout(ANSWER_S)
        connection.send(command)
        answer = connection.receive()
    finally:
        connection.close()
    if not isinstance(answer, Answer):
        raise UsageError(f"the run in {folder} did not answer: it is ending")
    if answer.error:
        raise error_named(answer.error)(answer.text)
    return answer.text


def _find(folder: Path) -> Way:
    """Where the run listens; raises if it does not run, on this host, as this user."""
    file, held = folder / FILE, is_held(folder)
    if held is None:
        holder = (folder / LOCK).read_text(errors="replace").strip()
        raise UsageError(f"the run in {folder} is trained by {holder or 'another host'}: give the command there")
    if not held:
        raise UsageError(f"the run in {folder} does not run: it has ended, or was killed. --resume continues it")
    try:
        about = file.stat()
        if about.st_uid != os.getuid() and os.getuid() != 0:
            raise UsageError(f"the run in {folder} is of another user: only that user can change it")
        if about.st_uid not in (os.getuid(), (folder / LOCK).stat().st_uid):
            raise SecurityError(f"{file} was not written by the user whose run this is: it is not used")
        if about.st_mode & 0o077:
            raise SecurityError(f"{file} can be read by others, which no file of ours can: it is not used")
        return msgspec.json.decode(file.read_bytes(), type=Way)
    except PermissionError:
        raise UsageError(f"the run in {folder} is of another user: only that user can change it") from None
    except FileNotFoundError:
        raise UsageError(
            f"the run in {folder} takes no commands: it is starting or ending, or another launcher (torchrun, mpirun, "
            "Slurm) started it"
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise CordeeError(f"{file} cannot be read: {error}") from error
