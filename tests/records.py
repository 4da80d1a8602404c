"""Runs made of nothing but their records, and the records of runs that are going on."""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from cordee.core.eventlog import read_events
from cordee.core.events import EVENTS, TimesEvent
from cordee.state.index import FORMAT, INDEX, seal
from harness import DEADLINE_S

T0 = 1_800_000_000.0
"""When these runs begin."""
Event = dict[str, Any]


def event(name: str, at: float, /, **fields: Any) -> Event:
    """One record, `at` seconds after the beginning; its fields are those of the table, all of them.

    What also says when it happened did so when it was written, if nothing else is given.
    """
    known = set(EVENTS[name].__struct_encode_fields__) - {"time", "settings"}
    if "at" in known:
        fields.setdefault("at", round(T0 + at, 6))
    if name == "step":
        fields = {"grad_norm": 1.0, "lr": 0.1, **fields}
    assert set(fields) == known, f"{name}: {sorted(set(fields) ^ known)}"
    return {"event": name, "time": round(T0 + at, 6), **fields}


def made(record: Event) -> Any:
    """The event of a record."""
    return msgspec.convert(record, EVENTS[record["event"]])


def times_of(worker: int, record: Mapping[str, Any]) -> TimesEvent:
    """The times that a worker reports, without a moment of their own."""
    return msgspec.convert({"event": "times", "worker": worker, **record}, TimesEvent)


def read(folder: Path) -> list[Event]:
    """The records of a run, each checked."""
    return [msgspec.to_builtins(one) for one in read_events(folder / "events.jsonl")]


def write_checkpoint(folder: Path, step: int) -> Path:
    """A checkpoint in a run's folder, of which only the index is more than a few bytes."""
    path, file = folder / "checkpoints" / f"step-{step:08d}", "tensors-00000.safetensors"
    path.mkdir(parents=True)
    (path / file).write_bytes(b"bytes")
    body = {"format": FORMAT, "step": step, "metrics": {}, "files": {file: {"bytes": 5, "sha256": ""}}}
    (path / INDEX).write_text(json.dumps({"sha256": seal(body), **body}))
    return path


def write(folder: Path, events: Iterable[Event], **run: Any) -> Path:
    """A run's folder with these events, and `run` as its run.json."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "events.jsonl").open("a", encoding="utf-8") as file:
        for one in events:
            file.write(json.dumps(one, separators=(",", ":")) + "\n")
    if run:
        (folder / "run.json").write_text(json.dumps(run))
    return folder


def start(at: float, workers: int, *, resume: bool = False, steps: int = 0, **job: Any) -> list[Event]:
    """The beginning of a section: the start, the workers, the job."""
    about = {
        "name": "made",
        "batch": 12,
        "epochs": 2,
        "steps_per_epoch": 5,
        "last_step": 10,
        "parameters": 7,
        "order": {},
    }
    samples = {"train": 60, "validation": 0, "test": 0}
    return [
        event("start", at, workers=workers, plan="sync=allreduce", resume=resume),
        *(worker(at + 1.0, one) for one in range(workers)),
        event("job", at + 1.5, **{**about, "steps": steps, "samples": samples, **job}),
    ]


def end(at: float, code: int = 0, reason: str = "completed") -> Event:
    return event("end", at, reason=reason, code=code, message="")


def worker(at: float, number: int, host: str = "here", cores: float = 64) -> Event:
    return event("worker", at, worker=number, host=host, pid=100 + number, device="cpu", threads=1, cores=cores, node=0)


def step(
    at: float,
    number: int,
    *,
    loss: float | None = 1.0,
    samples: int = 12,
    ms: float = 100.0,
    epoch: int = 0,
    **more: float | None,
) -> Event:
    """`more` may hold `lr` and `grad_norm`."""
    known = {"lr": None, "grad_norm": None, **more}
    return event("step", at, step=number, epoch=epoch, loss=loss, samples=samples, ms=ms, **known)


Parts = tuple[float, float, float, float]
"""Data, compute, blocked, waited, in milliseconds."""


def times(
    at: float,
    number: int,
    first: int,
    arrived: Iterable[float],
    parts: Parts,
    samples: int,
    callbacks: float = 0.0,
    costs: tuple[float, int, int] = (0.0, 0, 0),
) -> Event:
    """The same parts for some steps, the first of which is `first` (from 0), with these arrivals.

    `costs`: hidden milliseconds, bytes sent, and bytes without a codec.
    """
    stamps = [round(T0 + one, 6) for one in arrived]
    count = len(stamps)
    data, compute, blocked, waited = ([one] * count for one in parts)
    lists = {"data_ms": data, "compute_ms": compute, "blocked_ms": blocked, "waited_ms": waited}
    lists |= {"callbacks_ms": [callbacks] * count}
    lists |= {name: [one] * count for name, one in zip(("hidden_ms", "sent", "plain"), costs, strict=True)}
    lists |= {"paused_ms": [0.0] * count}
    return event("times", at, worker=number, **{"from": first}, **lists, samples=[samples] * count, arrived=stamps)


def usage(
    at: float,
    number: int,
    cpu_s: float,
    memory_mb: float = 100.0,
    sent: int = 0,
    gpu_mb: float = 0.0,
    bytes_: tuple[int, int, int] = (0, 0, 0),
) -> Event:
    """`bytes_`: near, without a codec, and received."""
    fields = {"cpu_s": cpu_s, "memory_mb": memory_mb, "gpu_mb": gpu_mb, "bytes_sent": sent, "at": T0 + at}
    fields |= dict(zip(("bytes_near", "bytes_plain", "bytes_received"), bytes_, strict=True))
    return event("usage", at, worker=number, **fields)


def epoch(at: float, number: int, after: int, validation: Mapping[str, float | None], ms: float = 20.0) -> Event:
    return event("epoch", at, epoch=number, step=after, loss=1.0, validation=dict(validation), ms=ms)


def long_run(steps: int, workers: int, *, at_once: int = 25, step_s: float = 0.01) -> Iterator[Event]:
    """A run of many steps as a real one would record it; worker 1 is a little slower than the others."""
    yield from start(0.0, workers, last_step=steps, epochs=20, steps_per_epoch=max(1, steps // 20))
    share = 3
    wave: Callable[[int], float] = lambda number: 2.0 * math.exp(-5 * number / steps) + 0.1 * math.sin(number)  # noqa: E731
    for first in range(0, steps, at_once):
        arrivals = []
        for number in range(first, min(steps, first + at_once)):
            at = 2.0 + (number + 1) * step_s
            arrivals.append(at - 0.2 * step_s)
            ms = 1e3 * step_s * (1.0 + 0.1 * math.sin(7 * number))
            yield step(at, number + 1, loss=wave(number), samples=share * workers, ms=ms, epoch=number * 20 // steps)
        for one in range(workers):
            late = 0.1 * step_s if one == 1 else 0.0
            parts = (0.1, 7.0 + (1.0 if one == 1 else 0.0), 3.0 - (1.0 if one == 1 else 0.0), 0.0)
            yield times(at + 0.01, one, first, [arrival + late for arrival in arrivals], parts, share)
        if first % (4 * at_once) == 0:
            for one in range(workers):
                yield usage(at + 0.01, one, 0.9 * at, 300.0 + one, int(1e6 * at))


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def hostile_run(folder: Path) -> Path:
    """Every text that a user or a host can choose is an attempt to run something."""
    return write(
        folder,
        [
            *start(0.0, 2, name=HOSTILE),
            worker(1.6, 0, HOSTILE),
            *(step(2.0 + number / 10, number) for number in range(1, 6)),
            event("epoch", 2.6, epoch=0, step=5, loss=1.0, validation={HOSTILE: 0.5, '"><b>': 0.25}, ms=3.0),
            event("failure", 2.7, worker=1, host=HOSTILE, reason=HOSTILE, left=1),
            event("regroup", 2.7, generation=2, workers=[0], ms=3.0),
            event("warning", 2.8, message=HOSTILE + "\u2028\x1b[31m"),
            event("end", 3.0, reason=HOSTILE, code=20, message=HOSTILE),
        ],
        target=HOSTILE,
        plan=HOSTILE,
        workers=2,
        versions={HOSTILE: HOSTILE},
        job={"name": HOSTILE, HOSTILE: [HOSTILE]},
    )


def events_until(out: Path, process: subprocess.Popen[str], number: int) -> list[Event]:
    """The events of a run that is going on, once this step is on record."""
    deadline = time.monotonic() + DEADLINE_S
    while process.poll() is None and time.monotonic() < deadline:
        found = read(out) if (out / "events.jsonl").exists() else []
        if any(one["event"] == "step" and one["step"] >= number for one in found):
            return found
        time.sleep(0.05)
    raise AssertionError(f"step {number} never came: {process.communicate(timeout=5)}")
