"""A run in words: how it ended, what happened, and numbers as people read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cordee.core import events
from cordee.core.times import PARTS
from cordee.core.words import amount, plural
from cordee.watch.summary import Summary, Worker

MOST_SHARES = 8
"""Shares that a line names."""
LEAST_CALLBACKS = 0.005
"""Callbacks that take less than this share of the time are not worth a column."""


def duration(seconds: float) -> str:
    """A length of time, to two or three figures."""
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} days {hours % 24} h"


def milliseconds(ms: float) -> str:
    """The length of a step."""
    return duration(ms / 1e3) if ms >= 1e4 else f"{number(ms)} ms"


def figure(value: float | None) -> str:
    """A loss or a metric."""
    if value is None:
        return "not finite"
    size = abs(value)
    return f"{value:.4f}" if 1e-3 <= size < 1e4 or not size else f"{value:.3e}"


def number(value: float) -> str:
    """Three digits that matter, and thousands set apart; nothing above 0 is written as 0."""
    if 0 < value < 0.1:
        return f"{value:.2g}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def percent(share: float) -> str:
    """A part of a whole."""
    return f"{share:.0%}" if share >= 0.0095 or not share else "<1%"


def worker_columns(summary: Summary) -> list[tuple[str, str, Callable[[Worker], str]]]:
    """The table of workers: where each runs, what it did, what it used. Name, kind and text of each column.

    Where several workers hold the state together, `holds` is each one's part of parameters, gradients, optimizer state.
    """
    columns: dict[str, Callable[[Worker], str]] = {
        "worker": lambda one: f"{one.worker}{' ✕ lost' if one.lost else ''}",
        "start": lambda one: str(one.start),
        "host": lambda one: one.host,
        "device": lambda one: f"{one.device}, {plural(one.threads, 'thread')}" if one.threads else one.device,
        "process": lambda one: str(one.pid or "–"),
        "steps": lambda one: f"{'≥ ' if one.at_least else ''}{one.steps:,}",
        "samples": lambda one: f"{'≥ ' if one.at_least else ''}{one.samples:,}",
        "processor": lambda one: duration(one.cpu_s),
        "cores": lambda one: "–" if one.cpu_cores is None else f"{one.cpu_cores:.2f}",
        "memory": lambda one: amount(one.memory_mb * 2**20),
        "GPU memory": lambda one: amount(one.gpu_mb * 2**20),
        "holds": lambda one: amount(sum(one.held.values())) if one.held else "–",
        "forecast": lambda one: amount(one.forecast_mb * 2**20) if one.forecast_mb else "–",
        "sent": lambda one: amount(one.bytes_sent),
        "present": lambda one: duration(one.hours * 3600),
    }
    if summary.starts <= 1:
        del columns["start"]
    if not any(worker.gpu_mb for worker in summary.workers):
        del columns["GPU memory"]
    if not any(worker.held for worker in summary.workers):
        del columns["holds"]
    if not any(worker.forecast_mb for worker in summary.workers):
        del columns["forecast"]
    return [(name, "" if name in ("worker", "host", "device") else "number", text) for name, text in columns.items()]


def parts_of(workers: Sequence[Worker]) -> list[str]:
    """The parts of a step that are worth showing: of callbacks only if they take a noticeable time."""
    called = any(one.share("callbacks") >= LEAST_CALLBACKS for one in workers)
    return [part for part in PARTS if part != "callbacks" or called]


def ending(summary: Summary, now: float) -> str:
    """How the run ended, in a sentence."""
    if summary.state == "completed":
        why = f" The training ended {cause(summary)}." if cause(summary) else ""
        return f"It completed after {duration(summary.running_s)}.{why}"
    if summary.state == "interrupted":
        return f"It was interrupted after {duration(summary.running_s)}; --resume continues it."
    if summary.state == "failed":
        # Without a full stop: the reason may end with a command.
        return f"It failed after {duration(summary.running_s)} (exit code {summary.code}): {summary.reason}"
    if summary.state == "killed":
        on = " --resume continues it." if summary.checkpoints else ""
        return f"It was killed after {duration(summary.running_s)}: its process is gone, and no end is on record.{on}"
    if not summary.heard:
        return "It has not started."
    ago = duration(max(0.0, now - summary.heard))
    if summary.state == "running":
        return f"It is running; the last record was written {ago} ago."
    return f"No end is on record: it is still running, or it was killed. The last record was written {ago} ago."


def cause(summary: Summary) -> str:
    """Why the training ended, such as `after step 88: Stop(when=...)`; empty if the record says no more."""
    reason = summary.ended.strip().rstrip(".")
    return "" if reason in ("", summary.state, summary.reason) else reason


def best(result: Mapping[str, Any]) -> str:
    """The best checkpoint of a run and whether its model is that one; empty if `result` names none."""
    if not (best := result.get("best")):
        return ""
    model = "that one" if result["model"] == "best" else "that of the last step"
    metric = f"{best['metric']} {figure(best['value'])}"
    return f"{metric} after step {best['step']:,}, epoch {best['epoch'] + 1}; the model is {model}"


def tell(event: events.Event) -> str:
    """What happened, in a line; empty for an event that is no incident."""
    match event:
        case events.FailureEvent():
            where = f" on {event.host}" if event.host else ""
            return f"worker {event.worker}{where} was lost: {event.reason}; {event.left} left"
        case events.ServerEvent(server=server, shard=shard, what="lost"):
            return f"server {server} on {event.host}, of shard {shard}, was lost: {event.reason}"
        case events.ServerEvent(server=server, shard=shard, what=role) if event.reason:  # not at the start
            role = {"first": "holds", "backup": "is the backup of"}.get(role, role)
            return f"server {server} on {event.host} {role} shard {shard}"
        case events.CoordinatorEvent(term=term, reason=reason) if reason:
            return f"the coordinator was started again on {event.host}, as number {term}: {reason}"
        case events.DecisionEvent(before=before, choice=choice) if before != choice:
            link = f"{event.compute_ms:.3g} ms of computing, {event.link_mbit:.3g} Mbit/s"
            return f"sync=auto, from step {event.step} on: {before} → {choice} ({link}; {event.reason})"
        case events.SharesEvent():
            sizes = [" : ".join(map(str, one[:MOST_SHARES])) for one in (event.before, event.after)]
            more = "" if len(event.after) <= MOST_SHARES else " : ..."
            return f"shares from step {event.step} on: {sizes[0]}{more} → {sizes[1]}{more} samples ({event.reason})"
        case events.StragglerEvent():
            return _straggling(event)
        case events.ContinuedEvent():
            again = f"; {plural(event.repeats, 'step')} after it will be computed again" if event.repeats else ""
            who = f"on {plural(event.workers, 'worker')}, plan {event.plan}"
            return f"the run continues by itself after step {event.step}, from {event.source}, {who}{again}"
        case events.JoinedEvent():
            place = "" if event.replaces is None else f", in the place of worker {event.replaces}"
            return f"worker {event.worker} on {event.host} has joined{place}"
        case events.LeftEvent():
            return f"worker {event.worker} on {event.host} has left: {event.reason}; {event.left} left"
        case events.ChangeEvent(text=text):
            return text
        case events.RegroupEvent():
            return f"continuing with workers {_first_of(event.workers, 16)}"
        case events.LinksEvent():
            return f"links between hosts: {speeds(event.links)}"
        case events.CutEvent():
            return f"{_cut(event)}; {_nearness(event)}"
        case events.ShardEvent(units=units):
            rest = f"in {len(units)} units and the rest" if units else "as one unit"
            return f"shard={event.shard} over {event.shards} workers, {rest}; {_nearness(event)}"
        case events.StrangerEvent(listener=listener, address=address, reason=reason):
            times = f" {event.count:,} times" if event.count > 1 else ""
            return f"{listener} on {event.host} refused a connection from {address}{times}: it {reason}"
        case events.WarningEvent():
            return event.message
        case events.FaultEvent():
            return event.what
        case events.AttemptEvent():
            return f"resume failed: {event.message} (exit code {event.code})"
        case events.EndEvent():
            return f"ended: {event.reason} (exit code {event.code})" if event.code else event.reason
    return ""


_TAKES = {
    "data": "waiting for data",
    "compute": "computing",
    "callbacks": "in callbacks",
    "network": "communicating over the slow link of its host",
    "paused": "in which its process does not run",
}
"""What a step of a straggler takes longer for, by cause."""


def _straggling(event: events.StragglerEvent) -> str:
    """Who makes the others wait, or does so no longer."""
    who, why = f"worker {event.worker} on {event.host}", _TAKES[event.cause]
    if event.over:
        return f"{who} makes the others wait no longer, after {plural(event.steps, 'step')} ({why}): {event.done}"
    times = f"{milliseconds(event.took_ms)} of each step {why}, instead of {milliseconds(event.usual_ms)}"
    return f"{who} makes the others wait since step {event.step}: {times}; {event.done}"


def _cut(event: events.CutEvent) -> str:
    """How many layers are cut, and into how many stages."""
    said = f"{len(event.layers)} layers are cut over {event.slices} workers, {len(event.whole)} are whole"
    if not event.units:
        return said
    stages = f"{1 + max(stage for _, stage, _ in event.units)} stages"
    if min(event.speeds, default=1.0) < 1:
        stages += f" for workers of unequal speed, {':'.join(f'{one:.2g}' for one in event.speeds)}"
    return f"{stages}; {said}" if event.slices > 1 else stages


def _nearness(event: events.CutEvent | events.ShardEvent) -> str:
    """How near what is computed in parts is to the whole model."""
    near = f"the loss of two samples differs by {event.loss:.1e} from that of the whole model"
    if event.gradient is not None:
        near += f", gradients by {event.gradient:.1e} at most ({event.parameter})"
    return near


def speeds(links: Sequence[tuple[str, str, float, float]]) -> str:
    """How fast links were measured to be, each with its round trip."""
    each = [f"{one} to {other} {speed:,.0f} Mbit/s ({ms:.2f} ms)" for one, other, speed, ms in links]
    return _first_of(each, 8)


def _first_of(things: Sequence[Any], most: int) -> str:
    """The first of a list that may be long."""
    return ", ".join(map(str, things[:most])) + (", …" if len(things) > most else "")


def losses(summary: Summary) -> list[str]:
    """Each worker that was lost, and how long the step lasted in which it was, one sentence per worker."""
    sentences = []
    for one in summary.incidents:
        if one.kind == "failure":
            text = f"{capital(one.text.partition('; ')[0])}, after step {one.step:,}"
            usual = f" instead of {milliseconds(one.usual_ms)}" if one.usual_ms is not None else ""
            sentences.append(f"{text}; the next step took {milliseconds(one.ms)}{usual}." if one.ms else f"{text}.")
    return sentences


def capital(text: str) -> str:
    """A sentence's beginning."""
    return text[:1].upper() + text[1:]
