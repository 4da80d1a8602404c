"""Fork servers that stay: a run that finds one starts its workers in milliseconds."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from cordee.core.errors import CordeeError, SecurityError, WaitedTooLong
from cordee.core.interpreter import python_module
from cordee.group.meeting import private_folder

START_S = 120.0
"""How long a fresh server may take to import everything."""
STOP_S = 10.0
"""How long a warm server may take to end."""
LONGEST_PATH = 100
"""Of a socket; the system takes 107 bytes."""
HASHES = "PYTHONHASHSEED"


def server_environment() -> dict[str, str]:
    """Of a server, and so of its workers: a set of words has the same order on all hosts and in all starts."""
    return {HASHES: "0", **os.environ}


def warm_path() -> Path:
    """The socket of this user's warm server for this very interpreter and code."""
    package = Path(__file__).resolve().parents[2]
    newest = max(file.stat().st_mtime_ns for file in package.rglob("*.py"))
    # Workers inherit from the server where they may run and what they can reach, so it must be as for ourselves.
    spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "mnt", "pid")]
    # Read when torch is loaded, and when Python starts, so they must be as for ourselves too.
    variables = [server_environment().get(name, "") for name in ("ONEDNN_MAX_CPU_ISA", "PYTHONPATH", HASHES)]
    # `python` and `python3` of one environment, as the installed command names it, are one interpreter.
    interpreter = (sys.prefix, os.path.realpath(sys.executable), sys.version)
    identity = f"{variables}|{interpreter}|{package}|{newest}|{spaces}|{sorted(os.sched_getaffinity(0))}"
    return private_folder("XDG_RUNTIME_DIR") / f"warm-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.sock"


def connect_warm(say: Callable[[str], None] = lambda message: None) -> socket.socket | None:
    """A connection to the warm server; None if there is none, or none can be. A run needs none."""
    try:
        return _connect(warm_path())
    except SecurityError as error:
        say(f"no warm server is used: {error}")
    except CordeeError:
        pass  # where none can be kept, none is missed
    return None


def _connect(path: Path) -> socket.socket | None:
    if not path.exists():
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(str(path))
    except OSError:
        sock.close()
        return None
    return sock


def start_warm(minutes: float) -> int:
    """Start a warm server and wait until it serves; returns its process number."""
    path = warm_path()
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise CordeeError(f"{path.parent} is too long for the path of a socket: set XDG_RUNTIME_DIR to a shorter one")
    path.unlink(missing_ok=True)  # of one that was killed: its file would say that the new one serves already
    process = subprocess.Popen(
        python_module("cordee.runtime.engines.forkserver", str(path), str(minutes)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        env=server_environment(),
    )
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if path.exists():
            return process.pid
        if process.poll() is not None:
            raise CordeeError(f"the warm server ended with code {process.returncode}")
        time.sleep(0.02)
    process.kill()
    raise CordeeError(f"the warm server was not ready within {START_S:.0f} s")


def stop_warm() -> list[int]:
    """End this user's warm servers, also those of other environments and of older code; returns their numbers.

    Runs that are going on are not touched: each has a server of its own.
    """
    stopped = []
    for path in sorted(private_folder("XDG_RUNTIME_DIR").glob("warm-*.sock")):
        found = _connect(path)
        if found is None:
            path.unlink(missing_ok=True)
            continue
        with found:
            (pid, _, _) = struct.unpack("3i", found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while path.exists() and psutil.pid_exists(pid):
            if time.monotonic() > deadline:
                raise WaitedTooLong(f"the warm server, process {pid}, did not end within {STOP_S:.0f} s")
            time.sleep(0.01)
        path.unlink(missing_ok=True)
        stopped.append(pid)
    return stopped
