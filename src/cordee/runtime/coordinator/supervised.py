"""The coordinator of a run as its launcher has it: a process of its own, which is started again when it ends.

The launcher owns what must outlive it: the socket where peers come, the workers, the run's record. Peers that lose the
coordinator wait at that socket for the next one, and train on meanwhile: a collective needs no coordinator.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from cordee.core.errors import CordeeError
from cordee.core.events import CoordinatorEvent, StepEvent
from cordee.group import messages
from cordee.group.messages import Message, Posted, Seat, Start
from cordee.group.wire import Address
from cordee.runtime.coordinator import link
from cordee.runtime.coordinator.holders import Servers
from cordee.runtime.coordinator.known import Known
from cordee.runtime.coordinator.link import Call, Frame, Line, decode_frame
from cordee.runtime.coordinator.state import Hosts
from cordee.runtime.coordinator.tickets import Tickets, Turn, after
from cordee.runtime.notices import HeardOut, Minority, Notices

PATIENCE_S = 20.0
"""How long peers look for the next coordinator."""
SILENT_S = 5.0
"""After so long without a word it is ended: it was stopped, or hangs."""
START_S = 120.0
"""How long it may take to begin: it comes from a process that may have to start first."""
LOOK_S = 0.5
"""How often that is looked at."""
MOST_STARTS, WITHIN_S = 5, 30.0
"""If it ends more often within so long, what ends it would end the next one too."""

Starter = Callable[[int, int], None]
"""Starts a process that coordinates, with two open files: where peers come, and its end of the link."""


class Coordinator:
    """What `Hub` is to those who use it, though it may end and begin again."""

    def __init__(
        self,
        notices: Notices,
        listener: socket.socket,
        address: Address,
        start: Starter,
        known: Known,
        folder: Path,
        reason: str = "",
        tickets: Tickets | None = None,
    ) -> None:
        """Start the process; peers come to the `listener`, which is at this address.

        `folder` is the run's. `reason`: why, if there was one before on another host; `tickets`: what it knew of them.
        """
        self.notices, self.address = notices, address
        self._listener, self._start, self._folder = listener, start, str(folder.absolute())
        self._known, self._recorded = known, known.recorded
        self._tickets = tickets
        self._standing: Message | None = None
        self._calls: list[Call] = []
        """What the process may not have heeded yet."""
        self._seen: dict[int, int] = {}
        """Peer → the number of its last `Posted`: what it says again to another coordinator is not news."""
        self._pid = 0
        self.minority: Minority | None = None
        """Whether too few hosts are left; then the run ends on this side."""
        self._began: deque[float] = deque(maxlen=MOST_STARTS + 1)
        self._reason, self._first = reason, True
        self._closing = False
        self._heard_out = threading.Event()
        self._is_here = threading.Event()
        self._turn = threading.RLock()
        self._line = self._begin()
        self._thread = threading.Thread(target=self._watch, name="cordee-coordinator", daemon=True)
        self._thread.start()

    @property
    def known(self) -> Known:
        """The run as the coordinator knows it."""
        return self._known

    @property
    def hosts(self) -> Hosts:
        """The hosts of the run, as far as they have come."""
        return self._known.hosts

    def may_go_on(self, host: int) -> bool:
        """Wait until it is certain that the run continues without a host that was said to leave; whether it does."""
        deadline = time.monotonic() + START_S
        while host in self._known.here and self.minority is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return host not in self._known.here

    def introduced(self) -> CoordinatorEvent:
        """The process that coordinates now, for the record."""
        self._is_here.wait(START_S)
        return CoordinatorEvent(self._known.term, socket.gethostname(), self._pid, self._reason)

    def lose(self, worker: int, reason: str) -> None:
        """Say that a worker is gone (its process ended, or it was stopped)."""
        self._call(link.Gone(worker, reason))

    def invite(self, seat: Seat) -> None:
        """Say that a worker is about to be started at its place, and shall come in between two steps.

        Waits until the coordinator knows: a worker that connected before would be taken for one of the first.
        """
        self._call(call := link.Invite(seat))
        deadline = time.monotonic() + START_S
        while call in self._calls and not self._closing and time.monotonic() < deadline:
            time.sleep(0.001)

    def ask_to_leave(self, worker: int, reason: str) -> None:
        """Ask a worker to leave after the step that it is in."""
        self._call(link.AskToLeave(worker, reason))

    def let_in(self, late: messages.Welcome | messages.Evicted) -> None:
        """From now on this is the answer to hosts that enter the run."""
        self._call(link.LetIn(late))

    def start_on(self, node: int, start: Start) -> None:
        """Tell the launcher of the host with this place in the order of hosts."""
        self._call(link.StartOn(node, start))

    def expect(self, servers: Servers, *, persist: bool) -> None:
        """These parameter servers are about to be started; what they `persist` outlives them."""
        self._call(link.Expect(servers, persist))

    def leave(self, host: int, reason: str, *, certain: bool) -> None:
        """Say that a host is gone; the run continues without it only if enough others agree, unless it is `certain`."""
        self._call(link.Leave(host, reason, certain))

    def ask_to_stop(self, reason: str) -> None:
        """Ask all workers to end after the step they are in, with a checkpoint; those too that connect later."""
        self._standing = messages.Stop(reason)
        self._call(link.Halt(reason, at_once=False))

    def abort(self, reason: str, again: messages.Again | None = None) -> None:
        """End all workers at once; if the run is to start `again`, other hosts come back for it."""
        self._standing = messages.Abort(reason, again)
        self._call(link.Halt(reason, at_once=True, again=again))

    def hear_out(self, seconds: float) -> None:
        """Wait until all is read that ended workers and servers said. At most so long."""
        self._call(link.HearOut(seconds))
        self._heard_out.wait(seconds + LOOK_S)

    def close(self) -> None:
        """End the process, and what waits for its words; a second call does nothing."""
        with self._turn:
            self._closing = True
            with contextlib.suppress(OSError):
                self._line.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(SILENT_S)
        self._line.sock.close()
        self._listener.close()

    # ------------------------------------------------------------- the process

    def _begin(self) -> Line:
        ours, theirs = socket.socketpair()
        ours.settimeout(SILENT_S)
        line = Line(ours)
        self._began.append(time.monotonic())
        with theirs:
            self._start(self._listener.fileno(), theirs.fileno())
        with contextlib.suppress(OSError):  # it could not be started: then the link is at its end
            line.send(link.Begin(self.address, self._known, self._folder, self._standing, self._tickets))
            for call in self._calls:
                line.send(call)
        return line

    def _call(self, call: Call) -> None:
        with self._turn:
            self._calls.append(call)
            with contextlib.suppress(OSError):  # the next one is told
                self._line.send(call)

    def _watch(self) -> None:
        """On a thread: pass on what the process says; when it has ended, start another one."""
        while True:
            self._reason = self._listen(self._line)
            with self._turn:
                if self._closing:
                    return
                if len(self._began) > MOST_STARTS and time.monotonic() - self._began[0] < WITHIN_S:
                    often = f"the coordinator was started {MOST_STARTS} times within {WITHIN_S:.0f} s and ended again"
                    self.notices.put((-1, CordeeError(f"{often}: {self._reason}. Look at the memory of this host")))
                    self._is_here.set()
                    return
                self._known, self._first = self._known.next_term(self._recorded), False
                self._line.sock.close()
                try:
                    self._line = self._begin()
                except CordeeError as error:
                    self.notices.put((-1, error))
                    self._is_here.set()
                    return

    def _listen(self, line: Line) -> str:
        """Until the process has ended: why."""
        heard, pid, handle, why = time.monotonic(), 0, -1, "its process ended"
        while True:
            began = time.monotonic()
            readable, _, _ = select.select([line.sock], [], [], LOOK_S)
            now = time.monotonic()
            if now - began > 2 * LOOK_S:  # we did not run ourselves
                heard = now
            if not readable:
                if now - heard > (SILENT_S if pid else START_S):
                    why = f"it was silent for {SILENT_S:.0f} s, and was ended"
                    break
                continue
            frame = line.receive(decode_frame)
            if frame is None:
                break
            heard = now
            if frame.pid:
                pid, handle = frame.pid, os.pidfd_open(frame.pid)
            self._take(frame)
        if handle >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        return why

    def _take(self, frame: Frame) -> None:
        if frame.known is not None:
            with self._turn:
                self._known = frame.known
                self._calls = [one for one in self._calls if not is_heeded(one, frame.known)]
        if frame.pid:
            self._pid = frame.pid
            self._is_here.set()
            if not self._first:
                self.notices.put((-1, self.introduced()))
        if frame.event is not None:
            self.notices.put((frame.worker, frame.event))
        elif isinstance(frame.message, Posted):
            self._posted(frame.worker, frame.message)
        elif frame.message is not None:
            if isinstance(frame.message, messages.Farewell):
                self._standing = frame.message
            self.notices.put((frame.worker, frame.message))
        elif isinstance(frame.notice, Turn):
            self._tickets, _ = after(self._tickets, frame.notice)
        elif isinstance(frame.notice, Minority):
            self.minority = frame.notice
            self.notices.put((-1, frame.notice))
        elif isinstance(frame.notice, HeardOut):
            self._heard_out.set()
        elif frame.notice is not None:
            self.notices.put((frame.worker, frame.notice))
        elif frame.defect:
            self.notices.put((frame.worker, CordeeError(frame.defect)))

    def _posted(self, peer: int, posted: Posted) -> None:
        """Events for the record; those of which the process that read them first could not say so come twice."""
        if posted.number <= self._seen.get(peer, 0):
            return
        self._seen[peer] = posted.number
        for event in posted.events:
            if isinstance(event, StepEvent):
                self._recorded = max(self._recorded, event.step)
            self.notices.put((peer, event))


def is_heeded(call: Call, known: Known) -> bool:
    """Whether what the launcher said has become a part of what is known."""
    roster = known.roster
    match call:
        case link.Gone(worker):
            return known.ended or roster.has_lost(worker) or worker in known.lost_servers
        case link.Invite(seat):
            worker = seat.worker
            return worker in roster.invited | roster.alive or roster.has_lost(worker)
        case link.AskToLeave(worker):
            return known.ended or worker in roster.leaving or roster.has_lost(worker)
        case link.LetIn(late):
            return known.late == late
        case link.Expect(servers):
            return known.servers.seats[: len(servers.seats)] == servers.seats
        case link.Leave(host):
            return known.ended or host not in known.here
        case link.Halt():  # every peer is told when it comes
            return True
    return False
