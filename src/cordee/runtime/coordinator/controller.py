"""Watches over a run on the coordinator's host: acts on what happens, until all workers have ended."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable
from typing import Any

import msgspec

from cordee.core import interrupts
from cordee.core.errors import (
    CordeeError,
    CutOff,
    DivergedError,
    Interrupted,
    StorageError,
    WaitedTooLong,
    WorkerFailed,
    WorkersLost,
)
from cordee.core.events import Event, JobEvent, StepEvent, WarningEvent
from cordee.core.interrupts import Interrupts
from cordee.group import messages
from cordee.group.messages import FIRST_SERVER, Seat
from cordee.runtime.coordinator.changing import Changes
from cordee.runtime.coordinator.policy import MOST_SOON, replacement, what_ends
from cordee.runtime.coordinator.state import Places
from cordee.runtime.coordinator.supervised import Coordinator
from cordee.runtime.engines.seam import Engine
from cordee.runtime.folder import saved_step
from cordee.runtime.launch import Launch
from cordee.runtime.notices import (
    Commanded,
    Formed,
    HostCame,
    Interrupt,
    Leaves,
    Lost,
    NotStarted,
    ServerLost,
    ServersHold,
)
from cordee.runtime.recorder import Recorder
from cordee.runtime.recovering import Recovery, failed

IDLE_S = 0.5
"""How long to wait for news before looking whether there is anything to do."""
END_S = 10.0
"""How long workers may take to end after everything is done."""
PART_S = 2.0
"""How long they may take after something failed, unless one has a checkpoint to write to its end."""
READ_S = 1.0
"""How long it may take to read what workers said before they ended."""
GOES_ON = (CutOff, DivergedError, WorkerFailed, WorkersLost, WaitedTooLong, StorageError, Interrupted)
"""What a run may be gone on with after, from its last checkpoint."""


class Controller:
    """Reads notices until the run has ended one way or another."""

    def __init__(
        self, launch: Launch, hub: Coordinator, engine: Engine, recorder: Recorder, recovery: Recovery
    ) -> None:
        """Nothing happens before `watch`; `recovery` knows how the run goes on when it has ended."""
        self._launch, self._hub, self._engine, self._recorder = launch, hub, engine, recorder
        self._recovery = recovery
        self._hosts: dict[int, str] = {}
        self._begun = self._stepped = False
        """Whether the training is known to have begun, and a step of it to be done."""
        self._changes = Changes(launch, hub, recorder, self._start, self._stop)
        self._vacant: list[int] = []
        """Lost workers whose places are to be filled."""
        self._left = 0
        """Workers that were left after the last loss."""
        self._steps = 0
        self._interrupts = 0
        """Signals that came to this process."""
        self._stopping = False
        """Whether all workers were asked to end after their step."""
        self._error: CordeeError | None = None
        self._finished = False
        self._ends_by = 0.0
        """Until when workers are waited for when the run is over."""

    def watch(self, begin: Callable[[], Places], signals: Interrupts) -> dict[str, Any]:
        """Start the workers by `begin`, which returns their places, and stay until all have ended.

        Whatever ends the run is on its record.
        """
        signals.wake = lambda: self._hub.notices.put((-1, Interrupt()))
        try:
            interrupts.check()  # what came before that
            self._changes.places = begin()
        except CordeeError as error:
            self._error = error
        while not self._finished and self._error is None:
            try:
                self._listen()
                self._fill_places()
                self._recorder.flush()
            except StorageError as error:  # the record cannot be written
                self._error = self._error or error
        self._wind_up()
        return self._conclude()

    def _listen(self) -> None:
        """Take what has come, or wait a moment for it."""
        due = self._engine.look()
        try:
            self._notice(*self._hub.notices.get(timeout=IDLE_S if due is None else due))
            while not self._finished and self._error is None:
                self._notice(*self._hub.notices.get_nowait())
        except queue.Empty:
            pass

    def _notice(self, worker: int, notice: Any) -> None:
        match notice:
            case Event():
                self._posted(worker, notice)
            case messages.Who(host=host):
                self._hosts[worker] = host
            case messages.Farewell():
                self._finished = True
            case messages.Lose(_, reason):
                self._hub.lose(worker, reason)
            case Lost():
                self._lost(worker, notice)
            case ServerLost(start=seat):
                self._recorder.notice(worker, notice)
                self._error = self._what_ends(worker, notice)
                if seat is not None and self._error is None and not self._finished:
                    self._start(seat)
            case ServersHold():
                self._recorder.notice(worker, notice)
            case NotStarted(reason) if worker >= FIRST_SERVER or self._changes.places.joins(worker):
                self._hub.lose(worker, f"could not be started: {reason}")
            case Formed():
                self._changes.formed(notice, self._hosts, self._steps)
            case Leaves() | Commanded() | HostCame() | messages.Woke():
                self._changes.take(worker, notice, trains=self._trains)
            case Interrupt(host):
                self._interrupt(host)
            case _:
                self._error = self._what_ends(worker, notice)

    def _posted(self, worker: int, event: Event) -> None:
        """A worker has something for the record."""
        if isinstance(event, StepEvent):
            self._stepped, self._steps = True, event.step
        self._begun = self._begun or isinstance(event, StepEvent | JobEvent)
        self._recorder.notice(worker, event)

    def _what_ends(self, worker: int, notice: object) -> CordeeError | None:
        return what_ends(worker, self._hosts.get(worker, ""), notice, self._launch.wording)

    def _lost(self, worker: int, lost: Lost) -> None:
        host = lost.host or self._hosts.get(worker, "")
        lost = msgspec.structs.replace(lost, host=host, reason=self._reason(worker, lost.reason))
        self._recorder.notice(worker, lost)
        if lost.member:
            self._left = lost.left
            self._error = self._what_ends(worker, lost)
        else:
            former = self._changes.places.replaces.get(worker)
            place = f"worker {worker} was to " + ("come in" if former is None else f"take the place of worker {former}")
            self._recorder.event(WarningEvent(f"{place}, and was lost: {lost.reason}"))
        if not (self._changes.lost(worker) or lost.with_host):
            self._vacant.append(worker)

    def _reason(self, worker: int, seen: str) -> str:
        """Why a worker is gone, in most cases better known by its exit status, which comes on another way."""
        if "connection" not in seen:
            return seen
        deadline = time.monotonic() + 0.1
        while (ended := self._engine.how_it_ended(worker)) is None and time.monotonic() < deadline:
            time.sleep(0.005)
        return ended or seen

    @property
    def _trains(self) -> bool:
        """Whether the training has begun, and is not about to end: workers may come and leave."""
        ends = self._error is not None or self._finished or self._stopping
        return self._begun and self._launch.target.trial is None and not ends

    def _fill_places(self) -> None:
        """Start workers that wait for it, and one in the place of each that was lost, if the plan says so."""
        if self._trains:
            self._changes.start_waiting(self._steps)
        while self._launch.plan.replace and self._vacant and self._trains:
            lost = self._vacant.pop()
            self._changes.places, seat = replacement(self._changes.places, lost, self._steps)
            if seat is None:
                if lost in self._changes.places.seats:
                    told = f"the place of worker {lost} stays empty: {MOST_SOON} others were lost there soon after it"
                    self._recorder.event(WarningEvent(told))
                continue
            self._recorder.event(WarningEvent(f"worker {seat.worker} is started in the place of worker {lost}"))
            self._changes.start(seat)

    def _start(self, seat: Seat) -> None:
        """In the place of a process that was lost."""
        try:
            self._engine.start([seat])
        except Interrupted:
            return  # its notice comes next
        except CordeeError as error:
            self._error = error

    def _interrupt(self, host: str) -> None:
        """A signal came here, or to the launcher of another `host`; a scheduler may send one to every host."""
        self._interrupts += not host
        if not self._begun:
            self._error = Interrupted(interrupts.EARLY)  # nothing is worth a wait
        elif host and self._stopping:
            return
        elif self._interrupts <= 1:
            saved = "" if self._launch.target.kind == "script" else ", with a checkpoint"
            more = f": host {host} was asked to stop" if host else "; once more to stop at once"
            self._stop(f"stopping after this step{saved}{more}")
        else:
            kept = "" if self._launch.target.kind == "script" else ", without a last checkpoint"
            self._error = Interrupted(f"stopped at once{kept}")

    def _stop(self, why: str) -> None:
        """Let all workers end after the step that they are in."""
        if not self._stopping:
            self._recorder.event(WarningEvent(why))
            self._stopping = True
            self._hub.ask_to_stop("interrupted")

    def _wind_up(self) -> None:
        """Let the workers end, then see that they have."""
        if self._error is not None:
            if not self._stopping:
                self._recovery.see_end(self._error, self._hub.known, self._changes.places, self._recorder, self._steps)
            self._hub.abort(str(self._error), self._recovery.again)
        self._ends_by = time.monotonic() + (END_S if self._error is None else PART_S)
        while not self._engine.wait(max(0.0, min(0.1, self._ends_by - time.monotonic()))):
            self._hear_out()
            if time.monotonic() >= self._ends_by:
                break
        self._engine.end()
        self._hub.hear_out(READ_S)
        self._hear_out()

    def _hear_out(self) -> None:
        """What workers still say belongs to the record; a worker that writes a checkpoint is given time for it."""
        while True:
            try:
                worker, notice = self._hub.notices.get_nowait()
            except queue.Empty:
                return
            match notice:
                case Event():
                    self._stepped = self._stepped or isinstance(notice, StepEvent)
                    with contextlib.suppress(StorageError):  # the disk may be what the run failed for
                        self._recorder.notice(worker, notice)
                case messages.Saving() if not isinstance(self._error, Interrupted):
                    self._ends_by = time.monotonic() + notice.seconds
                case Interrupt() if self._error is not None:
                    self._ends_by = 0.0

    def _what_was_saved(self) -> str:
        if self._launch.target.kind == "script":
            return "; what it had to save was up to the script"
        if (step := self._recorder.saved) in (None, saved_step(self._launch.out)):
            return " with a checkpoint"
        return f"; the checkpoint of step {step} is on the host of the worker that wrote it, in the folder given there"

    def _conclude(self) -> dict[str, Any]:
        if self._error is None and self._stopping:
            self._error = Interrupted(f"stopped{self._what_was_saved()}")
        elif isinstance(self._error, Interrupted) and self._stepped and not self._begun:  # news of steps came late
            self._error = Interrupted("stopped at once, in the first steps")
        if self._error is not None:
            self._error = failed(self._launch, self._error, begun=self._begun)
        if isinstance(self._error, GOES_ON) and self._recovery.again is None:
            self._recovery.keep_newest(self._error, self._recorder)
            left = self._left if isinstance(self._error, WorkersLost) else 0
            self._error.next_step = self._launch.going_on(left) or self._error.next_step
        try:
            result = self._recorder.end(self._error)
        except StorageError as error:
            raise self._error or error from None
        if self._error is not None and self._recovery.again is None:
            raise self._error
        return result
