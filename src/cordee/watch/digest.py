"""From a run's folder to its summary: one pass over the events, in memory that does not grow with the run.

Only the length of every step and its samples are kept (sixteen bytes a step), because percentiles need them, and a step
that is done again is to count once. The run may still be going on, may have been killed, or may have been resumed
several times: then its events have several sections, each from a `start` to an `end`, or to whatever was written last.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from array import array
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cordee.core import damage
from cordee.core.errors import Interrupted, PlanError
from cordee.core.events import damaged_record, read_events
from cordee.core.plan import Plan
from cordee.core.words import plural
from cordee.watch.accounts import Accounts, Missing, Piece
from cordee.watch.latency import latency, usual
from cordee.watch.members import Members
from cordee.watch.summary import Incident, Summary
from cordee.watch.thin import Thinner, curve, learning, pace
from cordee.watch.words import duration

LOSS_ROWS = 2000
PACE_ROWS = 300
EPOCH_ROWS = 500
MOST_OF_A_KIND = 100
"""Incidents of a kind that are listed; the others are counted."""
SILENT_S = 60.0
"""After so long without a record, a run that has not ended is no longer said to be running."""


def summarise(folder: str | os.PathLike[str], now: float | None = None) -> Summary:
    """What the run in `folder` came to, from whatever of its files is there; `now` is the time of day."""
    place = Path(folder)
    record = place / "events.jsonl"
    digest = Digest()
    with damage.named(damaged_record(record)):
        if record.exists():
            for event in read_events(record):
                digest.take(event)
        else:
            digest.result = damage.read_object(place / "result.json")
        return digest.summary(place, damage.read_object(place / "run.json"), time.time() if now is None else now)


class Digest:
    """Takes the events of a run, one after the other."""

    def __init__(self) -> None:
        """Nothing has happened yet."""
        self.result: dict[str, Any] = {}
        self._started = self._began = self._heard = 0.0
        self._offset = 0.0
        """Seconds of running before this start."""
        self._starts = 0
        self._again: dict[str, Any] | None = None
        """A start that goes on with the run, until it is known from where."""
        self._ended: Mapping[str, Any] | None = None
        self._job: Mapping[str, Any] = {}
        self._plan: Mapping[str, Any] = {}
        """What a session said of its own plan."""
        self._step = self._epochs = self._samples = 0
        self._start_s: float | None = None
        """How long this start took until its first step, by the worker that speaks; None before that."""
        self._stepped = 0.0
        """When the last step was committed, in seconds of running."""
        self._loss: float | None = None
        self._lr: float | None = None
        self._grad_norm: float | None = None
        self._validation: Mapping[str, float | None] = {}
        self._lengths = array("d")
        self._first_length = 0
        """Where in them this start begins."""
        self._long: dict[int, int] = {}
        """Losses of this start: from the place of the incident to that of the step in which it happened."""
        self._step_samples = 0
        """Of all steps, those that were done again included."""
        self._held = array("q")
        """Samples of each step that stands: one that is done again takes the place of the first."""
        self._losses, self._pace = Thinner(LOSS_ROWS), Thinner(PACE_ROWS)
        self._metrics, self._saves = Thinner(EPOCH_ROWS), Thinner(EPOCH_ROWS)
        self._metric_names: dict[str, None] = {}
        self._other_s = dict.fromkeys(("start", "evaluation", "saving"), 0.0)
        self._count: Counter[str] = Counter()
        self._incidents: list[Incident] = []
        self._undated: dict[int, float] = {}
        """Incidents whose step is not known yet: the first one that is committed after this moment comes after them."""
        self._notes: list[Mapping[str, Any]] = []
        """Until the next event tells whether they belong to a start that follows, such as waiting for other hosts."""
        self._present: set[int] = set()
        self._members: Members | None = None
        self._accounts = self._new_accounts()

    def take(self, event: Mapping[str, Any]) -> None:
        """One event."""
        if event["event"] in ("warning", "fault"):
            self._notes.append(event)
            return
        if event["event"] == "start":
            self._close_section()
        else:
            self._take_notes()
        self._take(event)

    def _take_notes(self) -> None:
        for event in self._notes:
            self._take(event)
        self._notes.clear()

    def _take(self, event: Mapping[str, Any]) -> None:
        if self._starts and event["event"] not in ("start", "attempt"):  # an attempt is no part of the run
            self._heard = max(self._heard, event["time"])
        take = getattr(self, f"_on_{event['event']}", None)
        if take is not None:
            take(event)

    @property
    def _workers(self) -> Members:
        if self._members is None:
            self._members = Members(len(self._present))
        return self._members

    def _new_accounts(self) -> Accounts:
        return Accounts(self._present, self._on_piece, self._on_missing)

    def _running(self, moment: float) -> float:
        """A time of day as seconds of running; what comes before a start is said to come with it."""
        return round(self._offset + (max(0.0, moment - self._began) if self._starts else 0.0), 4)

    # ------------------------------------------------------------- sections

    def _on_start(self, event: Mapping[str, Any]) -> None:
        self._starts += 1
        self._began = event["time"]
        self._started = self._started or self._began
        if self._starts > 1:
            self._again = {
                "workers": event["workers"],
                "pause": max(0.0, self._began - self._heard),
                "time": self._began,
            }
        self._heard = self._began
        self._ended, self.result, self._plan = None, {}, {}
        self._start_s, self._first_length = None, len(self._lengths)
        self._present = set(range(event["workers"]))
        self._accounts = self._new_accounts()

    def _close_section(self) -> None:
        """What this start was about to tell will not come any more."""
        if not self._starts:
            return
        self._resumed(self._step)
        self._accounts.finish()
        if self._accounts.ready is not None:  # until all could begin, which the one that speaks does not know
            self._start_s = max(0.0, self._accounts.ready - self._began)
        self._other_s["start"] += self._start_s or 0.0
        for one, place in self._long.items():
            around = usual(self._lengths, place, self._first_length)
            self._incidents[one] = dataclasses.replace(self._incidents[one], usual_ms=around)
        self._offset = self._running(self._heard)
        self._began = self._heard
        self._workers.all_leave(self._starts, self._offset)
        for place in self._undated:  # no step came after them
            self._incidents[place] = dataclasses.replace(self._incidents[place], step=self._step)
        self._undated.clear()
        self._long.clear()

    def _resumed(self, step: int) -> None:
        """The run goes on after `step`."""
        if self._again is None:
            return
        workers = self._again["workers"]
        many = plural(workers, "worker")
        behind = f"; {self._step - step} steps beyond it are done again" if step < self._step else ""
        text = f"resumed after step {step} on {many}, {duration(self._again['pause'])} after the last record{behind}"
        self._add("resume", self._again["time"], text, step=step)
        self._again = None
        for thinner in (self._losses, self._pace, self._metrics, self._saves):
            thinner.go_on_after(step)
        self._workers.go_on_after(step)

    def _on_job(self, event: Mapping[str, Any]) -> None:
        self._job = event
        self._resumed(event["steps"])
        self._step = event["steps"]
        del self._held[self._step :]

    def _on_plan(self, event: Mapping[str, Any]) -> None:
        self._plan = event

    def _on_result(self, event: Mapping[str, Any]) -> None:
        self.result = event["result"]

    def _on_end(self, event: Mapping[str, Any]) -> None:
        self._ended = event
        code = event["code"]
        text = event["reason"] if not code else f"ended: {event['reason']} (exit code {code})"
        self._add("end", event["time"], text)

    def _on_attempt(self, event: Mapping[str, Any]) -> None:
        text = f"an attempt to resume came to nothing: {event['message']} (exit code {event['code']})"
        self._add("attempt", event["time"], text, seconds=self._running(self._heard))

    # ------------------------------------------------------------- training

    def _on_step(self, event: Mapping[str, Any]) -> None:
        at = _at(event)
        if self._start_s is None:
            self._start_s = max(0.0, at - event["ms"] / 1e3 - self._began)
        for place in [place for place, moment in self._undated.items() if moment < at]:
            del self._undated[place]
            one = self._incidents[place]
            ms = one.ms
            if one.kind == "failure":
                ms = event["ms"]
                self._long[place] = len(self._lengths)
            self._incidents[place] = dataclasses.replace(one, step=event["step"] - 1, ms=ms)
        self._step, self._stepped, self._loss = event["step"], self._running(at), event["loss"]
        if not self._metrics.rows:  # a loop of one's own does not say when an epoch ends
            self._epochs = event["epoch"] + (0 if self._job else 1)
        self._lr, self._grad_norm = event.get("lr"), event.get("grad_norm")
        learned = self._losses.row(self._step, self._stepped)
        for name, value in (("loss", self._loss), ("lr", self._lr), ("grad_norm", self._grad_norm)):
            learned.note(name, value)
        row = self._pace.row(self._step, self._stepped)
        row.note("ms", event["ms"])
        row.note("samples", event["samples"])
        self._lengths.append(event["ms"])
        self._accounts.commit(self._step, event["samples"])
        self._step_samples += event["samples"]
        del self._held[self._step - 1 :]
        self._held.append(event["samples"])

    def _on_epoch(self, event: Mapping[str, Any]) -> None:
        self._epochs = event["epoch"] + 1
        self._other_s["evaluation"] += event["ms"] / 1e3
        if event["validation"]:
            self._validation = event["validation"]
        row = self._metrics.row(event["step"], self._stepped)
        for name, value in event["validation"].items():
            self._metric_names.setdefault(name)
            row.note(name, value)

    def _on_checkpoint(self, event: Mapping[str, Any]) -> None:
        self._count["checkpoint"] += 1
        self._other_s["saving"] += event["ms"] / 1e3
        self._saves.row(event["step"], self._running(_at(event))).note("ms", event["ms"])

    # ------------------------------------------------------------- workers

    def _on_worker(self, event: Mapping[str, Any]) -> None:
        self._workers.came(event["worker"], event, self._running(event["time"]))

    def _on_times(self, event: Mapping[str, Any]) -> None:
        self._accounts.report(event["worker"], event)

    def _on_piece(self, piece: Piece) -> None:
        """Steps of which somebody's reports are missing say nothing about shares."""
        self._workers.did(piece.first, piece.blocks, self._running, whole=piece.whole)

    def _on_missing(self, missing: Missing) -> None:
        self._workers.did_unreported(missing)

    def _on_usage(self, event: Mapping[str, Any]) -> None:
        self._workers.used(event["worker"], event, self._running(event["at"]))

    def _on_failure(self, event: Mapping[str, Any]) -> None:
        worker, host = event["worker"], event["host"] or ""
        where = f" on {host}" if host else ""
        text = f"worker {worker}{where} was lost: {event['reason']}; {event['left']} left"
        # The step in which it was lost may have been done already: it is the next group that has to do one anew.
        self._add("failure", _at(event), text, worker=worker, host=host, undated=math.inf)
        self._workers.lose(worker, host, event["reason"], self._running(_at(event)))
        self._present.discard(worker)
        self._accounts.lose(worker)

    def _on_regroup(self, event: Mapping[str, Any]) -> None:
        self._present = set(event["workers"])
        self._accounts.expect(self._present)
        members = ", ".join(map(str, event["workers"][:16])) + (", …" if len(event["workers"]) > 16 else "")
        text = f"going on with workers {members}"
        self._undated = {place: min(moment, _at(event)) for place, moment in self._undated.items()}
        self._add("regroup", _at(event), text, ms=event["ms"], undated=_at(event))

    def _on_warning(self, event: Mapping[str, Any]) -> None:
        self._add("warning", event["time"], event["message"])

    def _on_fault(self, event: Mapping[str, Any]) -> None:
        self._add("fault", event["time"], event["what"])

    def _on_links(self, event: Mapping[str, Any]) -> None:
        links = [f"{one} to {other} {speed:,.0f} Mbit/s ({ms:.2f} ms)" for one, other, speed, ms in event["links"][:8]]
        self._add("links", event["time"], ", ".join(links) + (", …" if len(event["links"]) > 8 else ""))

    def _add(self, kind: str, moment: float, text: str, *, undated: float | None = None, **more: Any) -> None:
        self._count[kind] += 1
        if self._count[kind] > MOST_OF_A_KIND:
            return
        if undated is not None:
            self._undated[len(self._incidents)] = undated
        seconds = more.pop("seconds", self._running(moment))
        self._incidents.append(Incident(kind, moment, seconds, more.pop("step", self._step), text, **more))

    # ------------------------------------------------------------- what has come together

    def summary(self, folder: Path, run: Mapping[str, Any], now: float) -> Summary:
        """All of it; no event can be taken afterwards."""
        self._take_notes()
        self._close_section()
        job = run.get("job") or self._job
        whole_s = sum(self._lengths) / 1e3
        workers = self._workers.workers()
        state, reason, code = self._state(now)
        result = self.result
        return Summary(
            name=str(job.get("name") or Path(str(run.get("target", ""))).stem or folder.absolute().name),
            folder=str(folder),
            state=state,
            reason=reason,
            code=code,
            started=self._started or run.get("started", 0.0),
            heard=self._heard,
            running_s=self._offset,
            starts=self._starts,
            plan=_written(self._plan["plan"]) if self._plan else str(run.get("plan") or ""),
            faithfulness=str((self._plan or run).get("faithfulness") or ""),
            ended=str(result.get("ended") or ""),
            run=run,
            result=result,
            steps=int(result.get("steps", self._step)),
            last_step=job.get("last_step"),
            epochs=int(result.get("epochs", self._epochs)),
            samples=int(result.get("samples", sum(self._held))),
            loss=result.get("loss", self._loss),
            validation=result.get("validation") or self._validation,
            test=result.get("test") or {},
            lr=self._lr,
            grad_norm=self._grad_norm,
            throughput=round(self._step_samples / whole_s, 2) if whole_s else 0.0,
            latency=latency(self._lengths),
            failures=self._count["failure"],
            checkpoints=self._count["checkpoint"],
            other_s={name: round(seconds, 4) for name, seconds in self._other_s.items()},
            resources={
                "cpu_s": round(sum(one.cpu_s for one in workers), 3),
                "memory_mb": max((one.memory_mb for one in workers), default=0.0),
                "gpu_mb": max((one.gpu_mb for one in workers), default=0.0),
                "bytes_sent": sum(one.bytes_sent for one in workers),
                "worker_hours": round(sum(one.hours for one in workers), 6),
            },
            workers=workers,
            incidents=tuple(sorted(self._incidents, key=lambda one: one.time)),
            left_out=sum(max(0, count - MOST_OF_A_KIND) for kind, count in self._count.items() if kind != "checkpoint"),
            losses=learning(self._losses.rows),
            pace=pace(self._pace.rows),
            metrics=curve(self._metrics.rows, **{name: (name, "mean") for name in self._metric_names}),
            saves=curve(self._saves.rows, ms=("ms", "mean")),
            split=self._workers.split(),
            usage=self._workers.usage(),
        )

    def _state(self, now: float) -> tuple[str, str, int | None]:
        """How the last start ended, in a word; why; and with what exit code."""
        if self._ended is None:
            heard = self._starts > 0 and now - self._heard <= SILENT_S
            return ("running" if heard else "unknown"), "", None
        code = int(self._ended["code"])
        word = {0: "completed", Interrupted.code: "interrupted"}.get(code, "failed")
        message = str(self._ended.get("message") or "") if word == "failed" else ""
        return word, str(self._ended["reason"]) + (f": {message}" if message else ""), code


def _at(event: Mapping[str, Any]) -> float:
    """When it happened; records of former versions may only say when it was written."""
    return float(event.get("at") or event["time"])


def _written(plan: object) -> str:
    """A plan as it stands in `run.json`."""
    if not isinstance(plan, Mapping):
        return str(plan)
    try:
        return str(Plan.from_dict(plan))
    except PlanError:  # of another version
        return ",".join(f"{key}={value}" for key, value in plan.items())
