"""From a run's folder to its summary: one pass over the events, in memory that does not grow with the run.

The run may still be running, may have been killed, or may have been resumed several times: then its events have
several sections, each from a `start` to an `end`, or to the record that was written last.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from cordee.core import damage, events
from cordee.core.errors import Interrupted, StorageError
from cordee.core.eventlog import read_events
from cordee.core.plan import Plan
from cordee.core.times import Block, Breakdown, without_start
from cordee.core.usage import BYTES
from cordee.core.words import plural
from cordee.watch.incidents import Incidents
from cordee.watch.members import Members
from cordee.watch.pipeline import Pipelined
from cordee.watch.series import Series, latency
from cordee.watch.summary import Incident, Summary
from cordee.watch.traffic import Carried
from cordee.watch.words import duration, tell

SILENT_S = 60.0
"""After so long without a record, a run that has not ended is no longer called running."""


def summarise(folder: str | os.PathLike[str], now: float | None = None, is_writing: bool | None = None) -> Summary:
    """What the run in `folder` came to, from those of its files that are there; `now` is the time of day.

    `is_writing`: whether a process holds the folder; None if that is not known.
    """
    place = Path(folder)
    record = place / "events.jsonl"
    reader = _Reader()
    with damage.named(damaged_run(place)):
        if record.exists():
            for event in _ordered(read_events(record)):
                reader.take(event)
        state = reader.state(time.time() if now is None else now, is_writing)
        return reader.summary(place, damage.read_object(place / "run.json"), *state)


def damaged_run(folder: Path) -> Callable[[str], StorageError]:
    """The error for a run whose `run.json` or `result.json` does not hold what it should, by the reason."""
    where = folder.absolute()
    return lambda reason: StorageError(
        f"{where} is damaged: run.json, or the result, does not hold what it should ({reason}). Restore or remove it"
    )


def _ordered(record: Iterable[events.Event]) -> Iterator[events.Event]:
    """The events; notes that stand before a start, such as waiting for other hosts, follow it: they belong to it."""
    notes: list[events.Event] = []
    for event in record:
        if isinstance(event, events.WarningEvent | events.FaultEvent):
            notes.append(event)
            continue
        yield from (event, *notes) if isinstance(event, events.StartEvent) else (*notes, event)
        notes.clear()
    yield from notes


class _Reader:
    """Takes the events of a run, one after the other, and gives each to the part that it concerns."""

    def __init__(self) -> None:
        self._result: dict[str, Any] = {}
        self._started = self._began = self._heard = 0.0
        self._offset = 0.0
        """Seconds of running before this start."""
        self._starts = 0
        self._resume: events.StartEvent | None = None
        """The start that resumes the run, until it is known after which step."""
        self._pause_s = 0.0
        """From the last record to this start."""
        self._ended: events.EndEvent | None = None
        self._job: events.JobEvent | None = None
        self._plan: events.PlanEvent | None = None
        """What a session said of its own plan."""
        self._start_s: float | None = None
        """How long this start took until its first step, by the worker that speaks; None before that."""
        self._all_starts_s = 0.0
        self._first_place = 0
        """Where among all steps those of this start begin."""
        self._series, self._incidents = Series(), Incidents()
        self._members, self._traffic, self._pipeline = Members(0), Carried(), Pipelined()
        self._ready: float | None = None
        """When the last worker was ready for its first step of this start; None before that is known."""
        self._breakdown = Breakdown(self._on_block)

    def take(self, event: events.Event) -> None:
        if isinstance(event, events.StartEvent):
            self._close_section()
        elif self._starts and not isinstance(event, events.AttemptEvent):  # an attempt is no part of the run
            self._heard = max(self._heard, event.time)
        if take := getattr(self, f"_on_{event.kind}", None):
            take(event)
        for part in (self._series, self._members, self._traffic, self._pipeline):
            if take := getattr(part, f"on_{event.kind}", None):
                take(event, self._running(event.moment))
        self._breakdown.take(event)
        if text := tell(event):
            fields = {name: getattr(event, name) for name in ("worker", "host", "ms") if hasattr(event, name)}
            took = f" (after {duration(fields['ms'] / 1e3)})" if fields.get("ms") else ""
            self._add(event.kind, event.moment, text + took, **fields)

    def _running(self, moment: float) -> float:
        """A time of day as seconds of running; what comes before a start counts as coming with it."""
        return round(self._offset + (max(0.0, moment - self._began) if self._starts else 0.0), 4)

    def _on_start(self, event: events.StartEvent) -> None:
        self._starts += 1
        self._began = event.time
        self._started = self._started or self._began
        if self._starts == 1:
            self._members = Members(event.workers)
        else:
            self._resume, self._pause_s = event, max(0.0, self._began - self._heard)
        self._heard = self._began
        self._ended, self._plan, self._result = None, None, {}
        self._start_s, self._ready, self._first_place = None, None, len(self._series.lengths)

    def _close_section(self) -> None:
        """No event of this start will come any more."""
        if not self._starts:
            return
        self._go_on_after(self._series.step)
        self._breakdown.finish()
        if self._ready is not None:  # until all could begin, which the one that speaks does not know
            self._start_s = max(0.0, self._ready - self._began)
        self._all_starts_s += self._start_s or 0.0
        self._offset = self._running(self._heard)
        self._began = self._heard
        self._members.end_start(self._starts, self._offset)
        self._incidents.end_start(self._series, self._first_place)

    def _go_on_after(self, step: int) -> None:
        """The run was resumed after `step`, if it was."""
        if self._resume is None:
            return
        many, pause = plural(self._resume.workers, "worker"), duration(self._pause_s)
        beyond = self._series.step - step
        behind = f"; {plural(beyond, 'step')} beyond it will be done again" if beyond > 0 else ""
        text = f"resumed after step {step} on {many}, {pause} after the last record{behind}"
        self._add("resume", self._resume.time, text, step=step)
        self._resume = None
        self._series.go_on_after(step)
        self._members.go_on_after(step)

    def _on_job(self, event: events.JobEvent) -> None:
        self._job = event
        self._go_on_after(event.steps)

    def _on_plan(self, event: events.PlanEvent) -> None:
        self._plan = event

    def _on_result(self, event: events.ResultEvent) -> None:
        self._result = event.result

    def _on_end(self, event: events.EndEvent) -> None:
        self._ended = event

    def _on_step(self, event: events.StepEvent) -> None:
        if self._start_s is None:
            self._start_s = max(0.0, event.moment - event.ms / 1e3 - self._began)

    def _on_block(self, first: int, blocks: Mapping[int, Block]) -> None:
        if self._ready is None:
            self._ready = max(block.began for block in blocks.values())
            blocks = without_start(blocks)
        self._members.add_times(first, blocks, self._running)

    def _add(self, kind: str, moment: float, text: str, **fields: Any) -> None:
        moment_s = self._running(self._heard if kind == "attempt" else moment)
        self._incidents.add(Incident(kind, moment, moment_s, text=text, **{"step": self._series.step, **fields}))

    # ------------------------------------------------------------- what has come together

    def summary(self, folder: Path, run: Mapping[str, Any], state: str, reason: str, code: int | None) -> Summary:
        """All of it; no event can be taken afterwards."""
        self._close_section()
        series, last, result = self._series, self._series.last, self._result
        job: Mapping[str, Any] = run.get("job") or (to_builtins(self._job) if self._job else {})
        workers = self._members.workers()
        other_s = {"start": self._all_starts_s, **series.other_s}
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
            plan=str(Plan.from_dict(self._plan.plan)) if self._plan else str(run.get("plan") or ""),
            faithfulness=self._plan.faithfulness if self._plan else str(run.get("faithfulness") or ""),
            ended=str(result.get("ended") or ""),
            run=run,
            result=result,
            steps=int(result.get("steps", series.step)),
            last_step=job.get("last_step"),
            epochs=int(result.get("epochs", series.epochs)),
            samples=int(result.get("samples", series.samples)),
            loss=result.get("loss", last.loss if last else None),
            validation=result.get("validation") or series.validation,
            test=result.get("test") or {},
            lr=last.lr if last else None,
            grad_norm=last.grad_norm if last else None,
            throughput=series.throughput,
            latency=latency(series.lengths),
            failures=self._incidents.count["failure"],
            checkpoints=series.checkpoints,
            other_s={name: round(seconds, 4) for name, seconds in other_s.items()},
            resources={
                "cpu_s": round(sum(worker.cpu_s for worker in workers), 3),
                "memory_mb": max((worker.memory_mb for worker in workers), default=0.0),
                "gpu_mb": max((worker.gpu_mb for worker in workers), default=0.0),
                **{name: sum(getattr(worker, name) for worker in workers) for name in BYTES},
                "worker_hours": round(sum(worker.hours for worker in workers), 6),
            },
            workers=workers,
            incidents=self._incidents.listed(),
            left_out=self._incidents.left_out,
            **series.curves(),
            split=self._members.parts(),
            traffic=self._traffic.summary(),
            pipeline=self._pipeline.summary(),
            usage=self._members.usage(),
        )

    def state(self, now: float, is_writing: bool | None) -> tuple[str, str, int | None]:
        """How the last start ended, in a word; why; and with what exit code."""
        if self._ended is None:
            if self._starts and is_writing is not None:
                return ("running" if is_writing else "killed"), "", None
            heard = self._starts > 0 and now - self._heard <= SILENT_S
            return ("running" if heard else "unknown"), "", None
        code = self._ended.code
        word = {0: "completed", Interrupted.code: "interrupted"}.get(code, "failed")
        message = self._ended.message if word == "failed" else ""
        return word, self._ended.reason + (f": {message}" if message else ""), code
