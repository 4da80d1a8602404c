"""Carries out changes of the workers of a run that trains: they come, leave and return, as `joining.py` decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cordee.core.errors import CordeeError, UsageError
from cordee.core.events import ChangeEvent
from cordee.group.messages import Answer, Command, Seat, Woke
from cordee.runtime.coordinator import joining
from cordee.runtime.coordinator.joining import Change, refuses_departures, refuses_newcomers
from cordee.runtime.coordinator.state import Places
from cordee.runtime.coordinator.supervised import Coordinator
from cordee.runtime.launch import Launch
from cordee.runtime.notices import Commanded, Departed, Formed, HostCame, Leaves
from cordee.runtime.recorder import Recorder

PLACES = "the workers have places of {}. Stop the run (Ctrl-C), and resume it with another number of workers"


class Changes:
    """Knows the places of the workers; called by the thread of the coordinator's loop."""

    def __init__(
        self,
        launch: Launch,
        hub: Coordinator,
        recorder: Recorder,
        start: Callable[[Seat], None],
        stop: Callable[[str], None],
    ) -> None:
        """`start` starts a process that the hub awaits; `stop` ends the run after a step, for a reason."""
        self.places = Places()
        self._launch, self._hub, self._recorder, self._start, self._stop = launch, hub, recorder, start, stop
        self._leaving: dict[int, str] = {}
        """Workers that are about to leave, and why."""
        self._hosts: list[HostCame] = []
        """Hosts that have come, and have no workers yet."""
        self._woken: dict[int, bool] = {}
        """Evicted workers that continue, which a restarted coordinator is told again: whether each was taken back."""

    def start(self, seat: Seat) -> None:
        """Start a worker that comes in between two steps."""
        self._hub.invite(seat)
        self._start(seat)

    def lost(self, worker: int) -> bool:
        """A worker is gone; whether it was about to leave anyway. Perhaps all that are left are to leave too."""
        self.places = self.places.without(worker)
        was_leaving = self._leaving.pop(worker, None) is not None
        self._see_who_stays()
        return was_leaving

    def start_waiting(self, steps: int) -> None:
        """Start the workers of hosts that have come, and those that continue, now that the run trains."""
        hosts, self._hosts = self._hosts, []
        for one in hosts:
            self._carry_out(*joining.host_came(self.places, one.node, one.host, one.workers))
        for worker in [one for one, is_back in self._woken.items() if not is_back]:
            self._woken[worker] = True
            self._carry_out(*joining.take_back(self.places, worker, steps))

    def formed(self, formed: Formed, hosts: Mapping[int, str], steps: int) -> None:
        """Another generation begins, after so many steps, with those who came and without those who left."""
        go = formed.go
        self.places = self.places.came(go.newcomers, steps)
        for worker in go.left:
            reason = self._leaving.pop(worker, "")
            self._recorder.notice(worker, Departed(hosts[worker], reason, len(go.members), formed.at))
        joined = [(new, hosts[new], self.places.replaces.get(new)) for new in go.newcomers]
        self._recorder.notice(-1, formed, joined)

    def take(self, worker: int, notice: Leaves | Commanded | HostCame | Woke, *, trains: bool) -> None:
        """Another number of workers is asked for, or possible: decide, and do it.

        `trains`: the training has begun, and was not asked to end.
        """
        match notice:
            case Leaves(reason):
                if worker not in self._leaving:
                    self.places, self._leaving[worker] = self.places.without(worker), reason
                    text = f"worker {worker} leaves after this step: {reason}"
                    self._recorder.event(ChangeEvent("leave", text, [], [worker]))
                self._see_who_stays()
            case Commanded(command, answer):
                answer(self._answer(command, trains))
            case HostCame():
                self._hosts.append(notice)
            case Woke() if not refuses_newcomers(self._launch.plan, self._launch.target.kind):
                self._woken.setdefault(worker, False)

    def _answer(self, command: Command, trains: bool) -> Answer:
        """Carry a command out, unless it is refused."""
        given = f"cordee {command.what}"
        try:
            if command.workers < 1:
                raise UsageError(f"{given} with {command.workers} workers: at least 1 is needed. Ctrl-C ends the run")
            if not trains:
                raise UsageError(f"{given}: the run does not train now; it is starting or ending")
            more = command.what == "join" or command.workers > len(self.places.here)
            plan, kind, began = self._launch.plan, self._launch.target.kind, len(self.places.began)
            if more and (engine := self._launch.engine) is not None:
                raise UsageError(f"{given}: {PLACES.format(engine.name)}")
            if more and (refusal := refuses_newcomers(plan, kind, began)):
                raise UsageError(f"{given}: no worker can come in to this run: {refusal}")
            if refusal := refuses_departures(plan, kind):  # those that come may have to leave again
                raise UsageError(f"{given}: no worker can leave this run: {refusal}")
            places, change = joining.decide(command, self.places, self._launch.check_room)
        except CordeeError as error:
            return Answer(str(error), type(error).__name__)
        self._carry_out(places, change)
        return Answer(change.text)

    def _carry_out(self, places: Places, change: Change) -> None:
        self.places = places
        started = [seat.worker for seat in change.starts]
        self._recorder.event(ChangeEvent(change.why, change.text, started, list(change.leaves)))
        for seat in change.starts:
            self.start(seat)
        for worker in change.leaves:
            self._leaving[worker] = f"asked by cordee {change.why}"
            self._hub.ask_to_leave(worker, self._leaving[worker])

    def _see_who_stays(self) -> None:
        """End the run in good order if no worker is to stay."""
        if joining.none_stays(self._hub.known.roster):
            self._stop("stopping after this step, with a checkpoint: all workers were asked to leave")
