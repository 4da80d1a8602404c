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
from cordee.core.events import Event, WarningEvent
from cordee.core.interrupts import Interrupts
from cordee.group import messages
from cordee.group.messages import FIRST_SERVER, Seat
from cordee.runtime.coordinator.changing import Changes
from cordee.runtime.coordinator.phase import Phase
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
        self._phase = Phase()
        self._changes = Changes(launch, hub, recorder, self._start, self._stop)
        self._vacant: list[int] = []
        """Lost workers whose places are to be filled."""
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
            self._phase = self._phase.fail(error)
        while not self._phase.over:
            try:
                self._listen()
                self._fill_places()
                self._recorder.flush()
            except StorageError as error:  # the record cannot be written
                self._phase = self._phase.fail(error)
        self._wind_up()
        return self._conclude()

    def _listen(self) -> None:
        """Take what has come, or wait a moment for it."""
        due = self._engine.look()
        try:
            self._notice(*self._hub.notices.get(timeout=IDLE_S if due is None else due))
            while not self._phase.over:
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
                self._phase = self._phase.finish()
            case messages.Lose(_, reason):
                self._hub.lose(worker, reason)
            case Lost():
                self._lost(worker, notice)
            case ServerLost(start=seat):
                self._recorder.notice(worker, notice)
                self._phase = self._phase.fail(self._what_ends(worker, notice))
                if seat is not None and not self._phase.over:
                    self._start(seat)
            case ServersHold():
                self._recorder.notice(worker, notice)
            case NotStarted(reason) if worker >= FIRST_SERVER or self._changes.places.joins(worker):
                self._hub.lose(worker, f"could not be started: {reason}")
            case Formed():
                self._changes.formed(notice, self._hosts, self._phase.steps)
            case Leaves() | Commanded() | HostCame() | messages.Woke():
                self._changes.take(worker, notice, trains=self._trains)
            case Interrupt(host):
                self._phase, why = self._phase.interrupted(host, saves=self._launch.target.kind != "script")
                if why:
                    self._stop(why)
            case _:
                self._phase = self._phase.fail(self._what_ends(worker, notice))

    def _posted(self, worker: int, event: Event) -> None:
        """A worker has something for the record."""
        self._phase = self._phase.posted(event)
        self._recorder.notice(worker, event)

    def _what_ends(self, worker: int, notice: object) -> CordeeError | None:
        return what_ends(worker, self._hosts.get(worker, ""), notice, self._launch.wording)

    def _lost(self, worker: int, lost: Lost) -> None:
        host = lost.host or self._hosts.get(worker, "")
        lost = msgspec.structs.replace(lost, host=host, reason=self._reason(worker, lost.reason))
        self._recorder.notice(worker, lost)
        if lost.member:
            self._phase = self._phase.lose(lost.left).fail(self._what_ends(worker, lost))
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
        """Whether workers may come and leave."""
        return self._phase.trains and self._launch.target.trial is None

    def _fill_places(self) -> None:
        """Start workers that wait for it, and one in the place of each that was lost, if the plan says so."""
        if self._trains:
            self._changes.start_waiting(self._phase.steps)
        while self._launch.plan.replace and self._vacant and self._trains:
            lost = self._vacant.pop()
            self._changes.places, seat = replacement(self._changes.places, lost, self._phase.steps)
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
            self._phase = self._phase.fail(error)

    def _stop(self, why: str) -> None:
        """Let all workers end after the step that they are in."""
        if not self._phase.stopping:
            self._recorder.event(WarningEvent(why))
            self._phase = self._phase.stop()
            self._hub.ask_to_stop("interrupted")

    def _wind_up(self) -> None:
        """Let the workers end, then see that they have."""
        phase = self._phase
        if phase.error is not None:
            if not phase.stopping:
                places = self._changes.places
                self._recovery.see_end(phase.error, self._hub.known, places, self._recorder, phase.steps)
            self._hub.abort(str(phase.error), self._recovery.again)
        self._ends_by = time.monotonic() + (END_S if phase.error is None else PART_S)
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
                    self._phase = self._phase.posted_late(notice)
                    with contextlib.suppress(StorageError):  # the disk may be what the run failed for
                        self._recorder.notice(worker, notice)
                case messages.Saving() if not isinstance(self._phase.error, Interrupted):
                    self._ends_by = time.monotonic() + notice.seconds
                case Interrupt() if self._phase.error is not None:
                    self._ends_by = 0.0

    def _what_was_saved(self) -> str:
        if self._launch.target.kind == "script":
            return "; what it had to save was up to the script"
        if (step := self._recorder.saved) in (None, saved_step(self._launch.out)):
            return " with a checkpoint"
        return f"; the checkpoint of step {step} is on the host of the worker that wrote it, in the folder given there"

    def _conclude(self) -> dict[str, Any]:
        phase = self._phase.concluded(self._what_was_saved())
        error = phase.error and failed(self._launch, phase.error, begun=phase.begun)
        if isinstance(error, GOES_ON) and self._recovery.again is None:
            self._recovery.keep_newest(error, self._recorder)
            left = phase.left if isinstance(error, WorkersLost) else 0
            error.next_step = self._launch.going_on(left) or error.next_step
        try:
            result = self._recorder.end(error)
        except StorageError as refused:
            raise error or refused from None
        if error is not None and self._recovery.again is None:
            raise error
        return result
