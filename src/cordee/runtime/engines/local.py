"""The workers of this host, as processes: started by a fork server, watched, and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable

from cordee.core import interrupts
from cordee.core.errors import CordeeError, Evicted, WorkersLost
from cordee.core.events import WarningEvent
from cordee.core.interpreter import python_module
from cordee.group.messages import FIRST_SERVER, Lose, Seat, Woke
from cordee.runtime.engines.forkserver import COORDINATE, News, decode_news, receive, send
from cordee.runtime.engines.warm import START_S, connect_warm, server_environment
from cordee.runtime.notices import Look, Notices, NotStarted
from cordee.runtime.relay import Output, Relay
from cordee.runtime.spec import WorkerSpec

LOOK_S = 0.05
"""How often a start looks whether a signal has come."""
CLOSE_S = 5.0
"""How long the server and the workers may take to end after they were told."""
STOPPED_S = 0.08
"""A worker that is stopped (SIGSTOP, a debugger) for so long is evicted."""


class LocalEngine:
    """Starts workers through a fork server of this host."""

    def __init__(
        self,
        notices: Notices,
        spec_of: Callable[[Seat], WorkerSpec],
        output: Output | None = None,
        sent_job: bytes | None = None,
        *,
        keeps_stopped: bool = False,
        coordinates: bool = False,
    ) -> None:
        """Connect to a warm server if there is one, else start one that ends with this process.

        `spec_of` says what a worker needs to know; `output` takes what workers print; `sent_job` is a packed job.
        `keeps_stopped`: a worker that is stopped is not ended, so that a notice `Woke` tells when it continues.
        `coordinates`: `coordinate` is called next.
        """
        self._notices, self._spec_of = notices, spec_of
        self._job = _in_memory(sent_job)
        self._relay = Relay(output or Output())
        self._asked: set[int] = set()
        """Workers that the server was asked for and has not answered about."""
        self._pids: dict[int, int] = {}
        self._ended: dict[int, str] = {}
        self._stopped_since: dict[int, float] = {}
        self._keeps_stopped = keeps_stopped
        self._kept: set[int] = set()
        """Evicted workers whose processes are stopped: they are not waited for."""
        self._changed = threading.Condition()
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._sock = connect_warm(lambda message: notices.put((-1, WarningEvent(message)))) or self._serve(
            [COORDINATE] if coordinates else []
        )
        self._sending = threading.Lock()
        self._listener = threading.Thread(target=self._listen, name="cordee-engine", daemon=True)
        self._is_ready = threading.Event()
        self._listener.start()

    def coordinate(self, listener: int, line: int) -> None:
        """Start a process that coordinates the run, with these open files; any thread may call this."""
        try:
            with self._sending:
                send(self._sock, COORDINATE, (listener, line))
        except OSError as error:
            raise CordeeError(f"the process that starts workers has ended: {error}") from error

    def start(self, seats: Iterable[Seat]) -> None:
        """With our standard output and error, or what takes their place."""
        deadline = time.monotonic() + START_S
        while not self._is_ready.wait(LOOK_S):
            interrupts.check()
            if time.monotonic() > deadline:
                raise CordeeError(f"the process that starts workers was not ready within {START_S:.0f} s")
        for seat in seats:
            interrupts.check()
            self._asked.add(seat.worker)
            try:
                with self._relay.outputs() as outputs, self._sending:
                    send(self._sock, self._spec_of(seat), (*outputs, *self._job))
            except OSError as error:
                self._asked.discard(seat.worker)
                raise CordeeError(f"the process that starts workers has ended: {error}") from error

    def look(self) -> float | None:
        """Evict workers that were stopped for too long."""
        now = time.monotonic()
        for worker, since in list(self._stopped_since.items()):
            if now - since < STOPPED_S:
                continue
            with self._changed:  # it may continue at this moment
                if self._stopped_since.pop(worker, None) is None:
                    continue
                keeps = self._keeps_stopped and worker < FIRST_SERVER
                if keeps:
                    self._kept.add(worker)
            self._notices.put((worker, Lose(worker, "it was stopped, and evicted")))
            if not keeps:
                self._kill(worker)
        return STOPPED_S / 4 if self._stopped_since else None

    def wait(self, seconds: float) -> bool:
        """Those too that the server has not answered about."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._pids.keys() - self._kept or self._asked), seconds)

    def how_it_ended(self, worker: int) -> str | None:
        """As the fork server reaped it."""
        return self._ended.get(worker)

    def end(self) -> None:
        """End workers."""
        if self._process is not None and not self._is_ready.is_set():
            self._process.kill()  # still importing: it has no workers, and does not listen yet
        with self._changed:
            self._changed.wait_for(lambda: not self._asked, CLOSE_S)
        self._kept.clear()
        for worker in list(self._pids):
            self._kill(worker)
        self.wait(CLOSE_S)

    def serve_again(self, notices: Notices, spec_of: Callable[[Seat], WorkerSpec]) -> bool:
        """Start the workers of another start of the run, now that those of one have ended; False: it cannot."""
        with self._changed:
            if self._pids or self._asked or not self._is_ready.is_set() or not self._listener.is_alive():
                return False
            self._notices, self._spec_of = notices, spec_of
            self._ended.clear()
            self._stopped_since.clear()
            return True

    def close(self) -> None:
        """End workers, the run's server, and the reading of their output; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self.end()
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
        for descriptor in self._job:
            os.close(descriptor)
        self._job = ()

    def _kill(self, worker: int) -> None:
        """By its parent, which knows whether a process number is still the worker's."""
        if (pid := self._pids.get(worker)) is not None:
            with contextlib.suppress(OSError), self._sending:
                send(self._sock, pid)

    def _serve(self, more: list[str]) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            python_module("cordee.runtime.engines.forkserver", str(theirs.fileno()), *more),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the launcher alone
            env=server_environment(),
        )
        theirs.close()
        return ours

    def _listen(self) -> None:
        while (news := receive(self._sock, decode_news)[0]) is not None:
            with self._changed:
                self._take(news.worker, news)
                self._changed.notify_all()
        self._is_ready.set()
        with self._changed:
            self._pids.clear()
            self._asked.clear()
            self._changed.notify_all()
        gone = "the process that starts workers was ended, and the workers with it"
        self._notices.put((-1, WorkersLost(gone)))

    def _take(self, worker: int, news: News) -> None:
        if news.pid or news.reason:
            self._asked.discard(worker)
        if worker < 0:
            self._is_ready.set()
        elif news.reason:
            self._notices.put((worker, NotStarted(news.reason)))
        elif news.status is None:
            self._pids[worker] = news.pid
        elif os.WIFSTOPPED(news.status):
            self._stopped_since.setdefault(worker, time.monotonic())
            self._notices.put((-1, Look()))
        else:
            was_evicted = self._stopped_since.pop(worker, None) is None and worker in self._kept
            if os.WIFCONTINUED(news.status):
                if was_evicted:  # what it would do now belongs to a former generation
                    self._kept.discard(worker)
                    self._kill(worker)
                    self._notices.put((worker, Woke(worker)))
            else:
                self._pids.pop(worker, None)
                self._kept.discard(worker)
                self._ended[worker] = _in_words(os.waitstatus_to_exitcode(news.status))
                self._notices.put((worker, Lose(worker, self._ended[worker])))
                if was_evicted and os.waitstatus_to_exitcode(news.status) == Evicted.code:  # it ended before we saw it
                    self._notices.put((worker, Woke(worker)))


def engine_for(
    former: LocalEngine | None,
    notices: Notices,
    spec_of: Callable[[Seat], WorkerSpec],
    given: tuple[Output, bytes | None, bool],
    *,
    coordinates: bool = False,
) -> LocalEngine:
    """The engine that has served a former start of the run, as its server need not import again, or another one.

    `given`: where output goes, the job that was sent, and whether stopped workers are kept.
    """
    if former is not None and former.serve_again(notices, spec_of):
        return former
    if former is not None:
        former.close()
    output, sent_job, keeps_stopped = given
    return LocalEngine(notices, spec_of, output, sent_job, keeps_stopped=keeps_stopped, coordinates=coordinates)


def _in_words(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"its process ended with exit code {status}"


def _in_memory(content: bytes | None) -> tuple[int, ...]:
    """A descriptor, the only way to memory that holds `content`; none for None."""
    if content is None:
        return ()
    descriptor = os.memfd_create("cordee-job")
    with os.fdopen(os.dup(descriptor), "wb") as file:  # in parts, as a system call writes less than 2 GiB
        file.write(content)
    return (descriptor,)
