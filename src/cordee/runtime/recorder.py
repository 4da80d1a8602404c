"""Writes what happened into the run's folder, and passes it on to those who watch."""

from __future__ import annotations

import contextlib
import platform
import secrets
import socket
import time
from collections.abc import Iterable
from functools import partial
from importlib.metadata import version
from typing import Any, Literal

from msgspec import json, structs

from cordee.core import damage, events
from cordee.core.errors import CordeeError, StorageError
from cordee.core.eventlog import EventLog, count_events
from cordee.core.events import Event, Listener, encode
from cordee.core.feedevents import add_up
from cordee.core.plan import Plan
from cordee.core.times import TimeTotals
from cordee.core.usage import Resources
from cordee.group.messages import FIRST_SERVER, Go, Holders
from cordee.runtime.coordinator.stragglers import Stragglers
from cordee.runtime.folder import GLANCE_S, RELEASE_S, Hold, check, is_there, last_recorded, make
from cordee.runtime.launch import Launch
from cordee.runtime.notices import Departed, Formed, Lost, ServerLost, ServersHold


def _roles(holders: Holders, before: dict[int, str], at: float) -> tuple[dict[int, str], list[events.ServerEvent]]:
    """The role of each parameter server, and those that have another one than `before`."""
    roles: dict[int, str] = {}
    changes = []
    for shard, holding in enumerate(holders.shards):
        for role, place in (("first", holding.first), ("backup", holding.backup)):
            if place is None:
                continue
            roles[place.number] = role
            if before.get(place.number) != role:
                number, why = place.number - FIRST_SERVER, "another one was lost" if holders.view > 1 else ""
                changes.append(events.ServerEvent(number, shard, role, place.host, place.pid, why, at))
    return roles, changes


def _refuse_unless(takes_over: bool, launch: Launch, *, script: bool) -> None:
    """Refuse a folder in which this launch cannot begin; a run that is taken over goes on there, whatever it holds."""
    if not takes_over:
        check(launch.out, launch.resume, script, launch.wording, held=launch.continued is not None)


class Recorder:
    """The files of one run: `run.json`, `events.jsonl`, `result.json`."""

    def __init__(self, launch: Launch, listen: Listener, *, takes_over: bool = False) -> None:
        """Make the folder and hold it. A folder that holds a run is only touched to go on with it.

        `takes_over`: the launcher that wrote the run's record is gone; if that is in this folder, it is continued.
        What a start to resume says waits until its job is there and the checkpoint is accepted: one that ends before
        leaves the run as it was. A script saves in its own way, so it begins anew in another folder.
        """
        self._launch, self._listen = launch, listen
        self.out, self._script = launch.out, launch.target.kind == "script"
        self._waits = launch.resume and not takes_over
        self.last_step, self._failed = 0, frozenset[int]()
        """The last step that is on record, and the workers whose loss the launcher before this one has recorded."""
        self._lost_at: float | None = None
        self.saved: int | None = None
        """The step of the last checkpoint that stands, on whatever host."""
        self.result: dict[str, Any] | None = None
        self._times, self._stragglers = TimeTotals(), Stragglers(launch.plan, self.event)
        self._resources = Resources()
        self._fed: dict[int, events.FeedEvent] = {}
        """Where the samples of each worker came from."""
        self.run = secrets.token_hex(8)
        """What tells this start of the run from others."""
        self._run: dict[str, Any] = {}
        self._memory: int | None = None
        self._first = 0
        """The worker that writes the run's files, besides this record."""
        self._hosts: dict[int, str] = {}
        self._servers: dict[int, str] = {}
        """The role of each parameter server."""
        self._writes_on = ""
        """The host where it does."""
        out, wording = launch.out, launch.wording
        refuse = partial(_refuse_unless, takes_over, launch, script=self._script)
        if not out.is_dir():  # refused before anything is made
            refuse()
        make(out, wording)
        self._identity = out.stat()
        self._hold = Hold(out, wording, RELEASE_S if takes_over else GLANCE_S)
        try:  # not before we hold it: another run may be training there
            refuse()
            if not launch.resume and not takes_over:  # of a start that came to nothing
                (out / "events.jsonl").unlink(missing_ok=True)
            self._events = EventLog(out / "events.jsonl")
            if takes_over:
                self._read()
            # Of the run: those of earlier starts count.
            self.failures = count_events(out / "events.jsonl", events.FailureEvent)
        except BaseException:
            self._hold.release()
            raise

    def close(self) -> None:
        """Let go of the folder, however the run ended."""
        if self._waits:
            self._events.forget()
        with contextlib.suppress(CordeeError):  # what could not be written was told where it happened
            self._events.close()
        self._hold.release()

    def _read(self) -> None:
        """What the launcher that is gone has written here, if anything."""
        self.last_step, self._failed = last_recorded(self.out)
        with contextlib.suppress(OSError, ValueError):
            self._run = json.decode((self.out / "run.json").read_bytes())
            self._writes_on = self._run["host"]

    @property
    def has_begun(self) -> bool:
        """Whether what is about to run is written down."""
        return bool(self._run)

    def begin(self, workers: int, nodes: int = 1, *, memory: int | None = None) -> None:
        """Write down what is about to run, on so many workers of all hosts; of a run that goes on, once it does.

        `memory`: the step of the state that hosts hold in their memory.
        """
        from cordee import __version__

        launch, self._memory = self._launch, memory
        self._run = {
            "run": self.run,
            "target": launch.target.path or launch.target.kind,
            "settings": launch.target.settings,
            "plan": str(launch.plan),
            "faithfulness": launch.plan.faithfulness,
            "workers": workers,
            "nodes": nodes,
            "host": socket.gethostname(),
            "versions": {
                "cordee": __version__,
                "torch": version("torch"),
                "numpy": version("numpy"),
                "python": platform.python_version(),
            },
            "started": time.time(),
        }
        self._writes_on = self._run["host"]
        if not self._waits:
            self._write_json("run.json", self._run)
        self.event(events.StartEvent(workers, str(launch.plan), launch.resume))
        if launch.taken_over:
            taken = ", ".join(f"{name}={value}" for name, value in launch.taken_over.items())
            self.event(events.WarningEvent(f"settings of the run: {taken}"))

    def event(self, event: Event, *, later: bool = False) -> None:
        """One event, into the file (at the latest with the next `flush`) and to the listener."""
        self._events.write(event, later=later or self._waits)
        with contextlib.suppress(OSError):  # the terminal was closed: the run continues
            self._listen(event)
        self._stragglers.take(event)

    def flush(self) -> None:
        """Write what waits, if the folder is still there; called several times a second."""
        if not is_there(self.out, self._identity):
            raise StorageError(
                f"the folder {self.out.absolute()} was removed or renamed while its run was going on: no checkpoint "
                "and no model could be written there. Start anew, or put the folder back and resume"
            )
        if not self._waits:
            self._events.flush()

    def notice(self, worker: int, notice: object, joined: Iterable[tuple[int, str, int | None]] = ()) -> None:
        """Something that the hub or a worker said; of a generation, who `joined`, where, and in whose place."""
        match notice:
            case events.StepEvent():
                if notice.step > self.last_step:  # a worker that took over as speaker may say it again
                    self.last_step = notice.step
                    self.event(notice, later=True)
            case events.TimesEvent():
                self._times.add(notice)
                self._stragglers.add(notice)
                self._events.write(notice, later=True)
            case events.UsageEvent():
                self._resources.used(notice)
                self._events.write(notice, later=True)
            case events.FeedEvent():
                self._fed[notice.worker] = notice
                self._events.write(notice, later=True)
            case events.TrafficEvent() | events.PositionEvent():
                self._events.write(notice, later=True)
            case events.WorkerEvent():
                self._resources.came(notice.worker)
                self.event(notice)
                self._hosts[notice.worker] = notice.host
                self._see_who_writes()
            case events.JobEvent() if "job" not in self._run:  # else it is said again, to another launcher
                self.last_step = notice.steps
                about = structs.asdict(notice)
                self._run["job"] = {name: about[name] for name in about if name not in ("time", "settings")}
                self._run["job"] |= notice.settings
                self._waits = False
                self._write_json("run.json", self._run)
                self.event(notice)
                self._tell_continued(notice.steps)
            case events.PlanEvent():
                self._own_plan(notice)
            case events.ResultEvent(result):
                self.result = result
            case Event() if not isinstance(notice, events.JobEvent):
                self.saved = notice.step if isinstance(notice, events.CheckpointEvent) else self.saved
                self.event(notice)
            case Lost(host, reason, left, at):
                self._resources.left(worker)
                if notice.member and worker not in self._failed:
                    self.failures += 1
                    self._lost_at = self._lost_at or at
                    self.event(events.FailureEvent(worker, host, reason, left, round(at, 6)))
            case Departed(host, reason, left, at):
                self._resources.left(worker)
                self.event(events.LeftEvent(worker, host, reason, left, round(at, 6)))
            case Formed(go, at):
                self._formed(go, round(at, 6), joined)
            case ServerLost(shard, host, reason, at):
                self.failures += 1
                self.event(
                    events.ServerEvent(worker - FIRST_SERVER, shard, "lost", host, reason=reason, at=round(at, 6))
                )
            case ServersHold(holders, at):
                self._servers, changes = _roles(holders, self._servers, round(at, 6))
                for change in changes:
                    self.event(change)

    def _tell_continued(self, step: int) -> None:
        """A start that nobody asked for has taken up the state of this step."""
        if (before := self._launch.continued) is None:
            return
        source: Literal["memory", "disk"] = "memory" if step == self._memory else "disk"
        workers, plan, repeats = self._run["workers"], self._run["plan"], max(0, before.reached - step)
        self.event(events.ContinuedEvent(step, source, workers, plan, repeats, before.lost))

    def _formed(self, go: Go, at: float, joined: Iterable[tuple[int, str, int | None]]) -> None:
        members = list(go.members)
        self._times.expect(members)
        if go.generation > 1:
            since, self._lost_at = self._lost_at, None
            for number, host, replaces in joined:
                self.event(events.JoinedEvent(number, host, replaces, at))
            ms = 0.0 if since is None else round((at - since) * 1e3, 1)
            self.event(events.RegroupEvent(go.generation, members, ms, at))
        self._first = members[0]
        self._see_who_writes()

    def _see_who_writes(self) -> None:
        """Say so if the run's files come to another host from now on."""
        host = self._hosts.get(self._first, self._writes_on)
        if host == self._writes_on or self._launch.engine is not None:  # from places of an engine they are brought here
            return
        self._writes_on = host
        does, what = "writes checkpoints and the trained model", f"there, in the folder that --out names on {host}"
        if self._script:
            does, what = "has rank 0", f"what the script saves as rank 0 is there, on {host}"
        self.event(events.WarningEvent(f"worker {self._first} on {host} {does} from now on: {what}"))

    def _own_plan(self, event: events.PlanEvent) -> None:
        """A script's session says by which plan it trains; news if that is not what the record says already."""
        own = {"plan": str(Plan.from_dict(event.plan)), "faithfulness": event.faithfulness}
        if not own.items() <= self._run.items():
            self._run |= own
            self._write_json("run.json", self._run)
            self.event(event)

    def end(self, error: CordeeError | None) -> dict[str, Any]:
        """Write the result and close."""
        if self._waits and error is not None:  # it did not go on: the run's record keeps one line of this start
            self._events.forget()
            self._waits = False
            self.event(events.AttemptEvent(error.code, str(error)))
            self._events.close()
            return {}
        reason, code = ("completed", 0) if error is None else (error.title, error.code)
        result = dict(self.result or {})
        if self.result is not None:
            started = {"workers": self._run["workers"], "plan": self._run["plan"]}
            seen = {"failures": self.failures, "time_s": self._times.totals(), "resources": self._resources.summary()}
            result |= started | seen
            result["data"] = add_up(self._fed.values()) if self._fed else {}
            result.setdefault("ended", reason)  # in words, if the training said why
            self._write_json("result.json", result)
            self.event(events.ResultEvent(result))
        self.event(events.EndEvent(reason, code, "" if error is None else str(error)))
        self._events.close()
        return result

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        path = self.out / name
        with damage.writing(path):
            damage.write_whole(path, json.format(encode(content), indent=2).decode() + "\n")
