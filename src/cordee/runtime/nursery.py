"""The workers of this host, as processes: started by a fork server, watched, and ended."""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cordee.core import interrupts
from cordee.core.errors import CordeeError, SecurityError, WaitedTooLong
from cordee.core.interpreter import python_module
from cordee.runtime.forkserver import READY, receive, send
from cordee.runtime.relay import Output, Relay
from cordee.runtime.spec import WorkerSpec

START_S = 120.0
"""How long a fresh server may take to import everything."""
LOOK_S = 0.05
"""How often we look meanwhile whether a signal has come."""
CLOSE_S = 5.0
"""How long the server and the workers may take to end after they were told."""
STOP_S = 10.0
"""How long a warm server may take to end."""
LONGEST_PATH = 100
"""Of a socket; the system takes 107 bytes."""
HASHES = "PYTHONHASHSEED"
STOPPED_S = 0.08
"""A worker that is stopped (SIGSTOP, a debugger) for so long is evicted."""


class Nursery:
    """Starts workers through a fork server and says what became of them, in `notices`."""

    def __init__(
        self, notices: queue.SimpleQueue[tuple[str, int, dict[str, Any]]], output: Output | None = None
    ) -> None:
        """Connect to a warm server if there is one; else start one that ends with us. `output` is of the workers."""
        self._notices = notices
        self._relay = Relay(output or Output())
        self._asked: set[int] = set()
        """Workers that the server was asked for and has not answered about."""
        self._pids: dict[int, int] = {}
        self._exited: dict[int, int] = {}
        self._stopped_since: dict[int, float] = {}
        self._changed = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        warm = connect_warm(lambda message: notices.put(("warning", -1, {"message": message})))
        self.is_warm = warm is not None
        self._sock = warm or self._start()
        self._listener = threading.Thread(target=self._listen, name="cordee-nursery", daemon=True)
        self._is_ready = threading.Event()
        self._listener.start()

    def start(self, spec: WorkerSpec, sent_job: int | None = None) -> None:
        """Start one worker, with our standard output and error, or what takes their place."""
        deadline = time.monotonic() + START_S
        while not self._is_ready.wait(LOOK_S):
            interrupts.check()
            if time.monotonic() > deadline:
                raise CordeeError(f"the process that starts workers was not ready within {START_S:.0f} s")
        interrupts.check()
        self._asked.add(spec.worker)
        try:
            with self._relay.outputs() as outputs:
                send(self._sock, {"start": spec.to_dict()}, outputs if sent_job is None else (*outputs, sent_job))
        except OSError as error:
            self._asked.discard(spec.worker)
            raise CordeeError(f"the process that starts workers has ended: {error}") from error

    def look(self) -> float | None:
        """Evict workers that were stopped for too long; seconds until the next look is due, None if none is stopped."""
        now = time.monotonic()
        for worker, since in list(self._stopped_since.items()):
            if now - since >= STOPPED_S and self._stopped_since.pop(worker, None) is not None:
                self._notices.put(("stopped", worker, {}))
                self.kill(worker)
        return STOPPED_S / 4 if self._stopped_since else None

    def kill(self, worker: int) -> None:
        """End a worker that must not come back. Its parent does it, which knows whether the number is still its own."""
        pid = self._pids.get(worker)
        if pid is not None:
            with contextlib.suppress(OSError):
                send(self._sock, {"kill": pid})

    def wait(self, seconds: float) -> bool:
        """Wait until all workers have ended; False if some have not."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pids and not self._asked, seconds)

    def exit_code(self, worker: int) -> int | None:
        """How a worker ended (negative: by which signal); None if it has not."""
        return self._exited.get(worker)

    def close(self) -> None:
        """End what is still there."""
        if self._process is not None and not self._is_ready.is_set():
            self._process.kill()  # still importing: it has no workers, and does not listen yet
        with self._changed:
            self._changed.wait_for(lambda: not self._asked, CLOSE_S)
        for worker in list(self._pids):
            self.kill(worker)
        self.wait(CLOSE_S)
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # our listener sits in a read; closing alone would not wake it
        self._listener.join(CLOSE_S)
        self._sock.close()
        if self._process is not None:
            try:
                self._process.wait(CLOSE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(CLOSE_S)
        self._relay.close()

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            python_module("cordee.runtime.forkserver", str(theirs.fileno())),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the launcher alone
            env=_environment(),
        )
        theirs.close()
        return ours

    def _listen(self) -> None:
        while True:
            message, _ = receive(self._sock)
            if message is None:
                break
            if READY in message:
                self._is_ready.set()
            elif "started" in message:
                with self._changed:
                    self._pids[int(message["worker"])] = int(message["started"])
                    self._asked.discard(int(message["worker"]))
                    self._changed.notify_all()
            elif "stopped" in message:
                self._stopped_since.setdefault(int(message["stopped"]), time.monotonic())
                self._notices.put(("look", -1, {}))
            elif "continued" in message:
                self._stopped_since.pop(int(message["continued"]), None)
            elif "unborn" in message:
                self._asked.discard(int(message["unborn"]))
                self._notices.put(("unborn", int(message["unborn"]), {"reason": message["reason"]}))
            elif "exited" in message:
                worker = int(message["exited"])
                with self._changed:
                    self._pids.pop(worker, None)
                    self._stopped_since.pop(worker, None)
                    self._exited[worker] = int(message["status"])
                    self._changed.notify_all()
                self._notices.put(("exited", worker, {"status": message["status"]}))
        self._is_ready.set()
        with self._changed:
            self._pids.clear()
            self._asked.clear()
            self._changed.notify_all()
        self._notices.put(("nursery_gone", -1, {}))


def _environment() -> dict[str, str]:
    """Of a server, and so of its workers: a set of words has the same order on all hosts and in all starts."""
    return {HASHES: "0", **os.environ}


# ------------------------------------------------------------- warm servers


def warm_path() -> Path:
    """The socket of this user's warm server for this very interpreter and code."""
    package = Path(__file__).resolve().parents[1]
    newest = max(file.stat().st_mtime_ns for file in package.rglob("*.py"))
    # Workers inherit from the server where they may run and whom they can reach, so it must be as for ourselves.
    spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "mnt", "pid")]
    # Read when torch is loaded, and when Python starts, so they must be as for ourselves too.
    variables = [_environment().get(name, "") for name in ("ONEDNN_MAX_CPU_ISA", "PYTHONPATH", HASHES)]
    identity = (
        f"{variables}|{sys.executable}|{sys.version}|{package}|{newest}|{spaces}|{sorted(os.sched_getaffinity(0))}"
    )
    return _warm_folder() / f"warm-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.sock"


def _warm_folder() -> Path:
    """Where this user's warm servers are found. A run must not be served by what another user has put there."""
    try:
        folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"cordee-{os.getuid()}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise CordeeError(
            f"there is no folder for a warm server: {error}. Set XDG_RUNTIME_DIR to one that you can write"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SecurityError(
            f"{folder} is not a folder of this user alone: remove it, or set XDG_RUNTIME_DIR to another one"
        )
    return folder


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
        python_module("cordee.runtime.forkserver", str(path), str(minutes)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        env=_environment(),
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
    for path in sorted(_warm_folder().glob("warm-*.sock")):
        found = _connect(path)
        if found is None:
            path.unlink(missing_ok=True)
            continue
        with found:
            (pid, _, _) = struct.unpack("3i", found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while path.exists() and _is_there(pid):
            if time.monotonic() > deadline:
                raise WaitedTooLong(f"the warm server, process {pid}, did not end within {STOP_S:.0f} s")
            time.sleep(0.01)
        path.unlink(missing_ok=True)
        stopped.append(pid)
    return stopped


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
