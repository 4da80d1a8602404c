"""What happened in a run, one JSON object a line: the names, the writer, the reader."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from cordee.core.errors import StorageError

EVENTS: Mapping[str, Mapping[str, str]] = {
    "start": {
        "workers": "workers at the start",
        "plan": "the plan as key=value,...",
        "resume": "whether a former run of this folder goes on",
    },
    "plan": {
        "plan": "the plan that a session asked for itself, by key; it takes the place of the start's",
        "faithfulness": "how near that is to one process",
    },
    "job": {
        "name": "of the job",
        "batch": "samples of a global batch",
        "epochs": "epochs to train; null: until something else stops it",
        "steps_per_epoch": "steps of an epoch",
        "last_step": "the step after which it ends; null: until something else stops it",
        "steps": "steps that were already committed (0 unless resumed)",
        "parameters": "numbers in the model that are trained",
        "samples": "samples of train, validation and test",
    },
    "worker": {
        "worker": "its number",
        "host": "where it runs",
        "pid": "its process",
        "device": "what it computes on",
        "threads": "how many threads it computes with",
        "cores": "cores that the workers of its host may use together, by affinity and quota; not in former versions",
    },
    "step": {
        "step": "steps committed so far, this one included",
        "epoch": "the epoch of the step, from 0",
        "loss": "mean loss over the global batch; null when not finite",
        "samples": "samples of the global batch",
        "grad_norm": "norm of the global gradient, before it was clipped; null if it is not known",
        "lr": "learning rate of the first group of parameters; null if the optimizer has none",
        "ms": "from the step before to this one on the worker that speaks for all, without evaluation and saving",
        "at": "when it was committed there, in the launcher's clock",
    },
    "times": {
        "worker": "whose times these are",
        "from": "the first step of the lists below, which have an entry a step",
        "data_ms": "waiting for data",
        "compute_ms": "forward, backward, update, and all else from one step to the next but callbacks",
        "blocked_ms": "in collectives: waiting for slower workers and communication together",
        "waited_ms": "the part of blocked_ms that is known to be waiting; `arrived` tells of the rest",
        "samples": "samples of its share",
        "arrived": "when the worker came to the collective, in the launcher's clock; the last one's tells them apart",
        "callbacks_ms": "in the job's callbacks; in records of former versions a part of compute_ms",
    },
    "usage": {
        "worker": "whose resources these are",
        "cpu_s": "processor time since its start",
        "memory_mb": "memory it holds now, in MiB, what it shares with its siblings included",
        "gpu_mb": "memory it holds on its GPU, in MiB; 0 without one",
        "bytes_sent": "bytes it has given to collectives since its start",
        "at": "when it was read, in the launcher's clock",
    },
    "epoch": {
        "epoch": "the epoch that ended, from 0",
        "step": "steps committed so far",
        "loss": "training loss of its last step",
        "validation": "value of each metric by name",
        "ms": "how long the evaluation took",
    },
    "checkpoint": {
        "step": "the step it holds; the record is written when all of it is on disk",
        "ms": "how long the training stood still for it",
        "at": "since when, in the launcher's clock",
    },
    "failure": {
        "worker": "who was lost",
        "host": "where",
        "reason": "what was seen",
        "left": "workers that are left",
        "at": "when it was seen, in the launcher's clock; the record is written a little later",
    },
    "regroup": {
        "generation": "number of the new group",
        "workers": "the workers in it",
        "ms": "from the news of the failure until all agreed to go on",
        "at": "when they did, in the launcher's clock",
    },
    "links": {"links": "from host, to host, Mbit/s and round trip in ms of each link that was measured at the start"},
    "fault": {"what": "what was done to the cluster on purpose, by `cordee twin`"},
    "warning": {"message": "what to know"},
    "attempt": {
        "code": "exit code of a start that was to go on with the run, and ended before it did",
        "message": "what the user was told",
    },
    "result": {"result": "what result.json says"},
    "end": {"reason": "why the run ended, in a word", "code": "exit code", "message": "what the user was told"},
}
"""Every event by name, and what its fields mean. Each record also has `event` and `time` (seconds since 1970)."""


def append_event(path: str | os.PathLike[str], event: str, /, **fields: Any) -> None:
    """Append one record to the log of another process: in one piece, as the system appends."""
    with contextlib.suppress(FileNotFoundError):
        handle = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(handle, _line(event, fields).encode())
        finally:
            os.close(handle)


def _line(event: str, fields: Mapping[str, Any]) -> str:
    assert event in EVENTS, f"event {event!r} is not in the table EVENTS"
    unknown = set(fields) - set(EVENTS[event])
    assert not unknown, f"event {event!r} has no documented field {sorted(unknown)}"
    record = {"event": event, "time": round(time.time(), 6), **jsonable(fields)}
    return json.dumps(record, allow_nan=False, ensure_ascii=False, separators=(",", ":")) + "\n"


class EventLog:
    """Appends events to a file; safe to call from several threads."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open `path` at its end, after cutting off a line that a killed writer left unfinished."""
        self.path = Path(path)
        self._lock = threading.Lock()
        self._waiting: deque[str] = deque()
        try:
            # Without a buffer: what the disk refused once is not tried again when the file is closed.
            self._file = self.path.open("ab+", buffering=0)
            _cut_torn_line(self._file)
        except OSError as error:
            raise self._storage_error(error) from None

    def write(self, event: str, /, *, later: bool = False, **fields: Any) -> None:
        """Append one record of `event` with these fields and hand it to the system, or `later`, with the next one."""
        self._waiting.append(_line(event, fields))
        if not later:
            self.flush()

    def flush(self) -> None:
        """Hand to the system what was to be written later."""
        with self._lock:
            lines = "".join(self._waiting.popleft() for _ in range(len(self._waiting)))
            try:
                self._append(lines.encode())
            except OSError as error:
                raise self._storage_error(error) from None

    def forget(self) -> None:
        """Drop what was to be written later."""
        with self._lock:
            self._waiting.clear()

    def close(self) -> None:
        """Write what is left and close the file; a second call does nothing."""
        if not self._file.closed:
            self.flush()
        with self._lock:
            self._file.close()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, line: bytes) -> None:
        """Write the whole line, or leave the file as it was."""
        end = self._file.seek(0, os.SEEK_END)
        written = 0
        try:
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(end)
            raise

    def _storage_error(self, error: OSError) -> StorageError:
        """The error for a log that cannot be written."""
        return StorageError(
            f"{self.path.absolute()} could not be written: {error.strerror}. Free or choose another disk."
        )


def read_events(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The records of `path` in order, those of other versions left out, and a last line that is still being written."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line, parse_constant=_refuse_constant)
            except (ValueError, RecursionError):
                raise StorageError(f"{Path(path).absolute()} is damaged: line {number} is not JSON.") from None
            if not isinstance(record, dict) or type(record.get("time")) not in (int, float):
                raise StorageError(f"{Path(path).absolute()} is damaged: line {number} is no record of an event.")
            if str(record.get("event")) in EVENTS:
                yield record


def damaged_record(path: str | os.PathLike[str]) -> Callable[[str], StorageError]:
    """The error for a log whose records do not hold what they should, by the reason."""
    where = Path(path).absolute()
    return lambda reason: StorageError(
        f"{where} is damaged: a record does not hold what it should ({reason}). Restore the file, or remove it"
    )


def _refuse_constant(name: str) -> None:
    """NaN and infinity, which JSON has no words for."""
    raise ValueError(name)


def count_events(path: str | os.PathLike[str], event: str) -> int:
    """How many records of `event` a log holds; 0 if there is none. The log may be long: no line is taken apart."""
    begins = b'{"event":' + json.dumps(event).encode() + b","
    try:
        with open(path, "rb") as file:
            return sum(line.startswith(begins) for line in file)
    except FileNotFoundError:
        return 0


def _cut_torn_line(file: io.FileIO) -> None:
    """Cut `file` after its last newline, reading backwards in blocks."""
    end = file.seek(0, os.SEEK_END)
    keep = end
    while keep > 0:
        start = max(0, keep - 4096)
        file.seek(start)
        newline = file.read(keep - start).rfind(b"\n")
        if newline >= 0:
            keep = start + newline + 1
            break
        keep = start
    if keep < end:
        file.truncate(keep)


def jsonable(value: Any) -> Any:
    """`value` as JSON has it: NaN and infinity as null, scalars of arrays and tensors as numbers, paths as text."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): jsonable(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(one) for one in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item"):
        return jsonable(value.item())
    raise TypeError(f"JSON cannot hold {value!r}")
