"""What a run's folder tells about the run while it is being written, and what of a schedule became due meanwhile."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path

from cordee.core import events
from cordee.core.errors import UsageError
from cordee.core.eventlog import parse_event
from cordee.twin.commands import last_run
from cordee.twin.schedule import Action, Progress, Schedule
from cordee.twin.twin import Twin


@dataclass
class RunFollower:
    """Reads the record of a run while it is being written."""

    folder: Path
    step: int = 0
    first: int = 0
    """The step that this start began with: not 0 when it is resumed."""
    began: float | None = None
    """When the first worker was there, by the clock that events are stamped with."""
    met: bool = False
    """Whether all hosts are there: from then on the first one notices by itself which host is lost."""
    ended: bool = False
    workers: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Host and process of each worker that is in the run."""
    gone: dict[int, tuple[str, int]] = field(default_factory=dict)
    """The same of those that were lost or have left; the process of one that was paused may be there."""
    _head: bytes = b""
    """The first line, with its time: it tells the file of a former start from that of this one."""
    _read: int = 0
    """Bytes of whole lines that were read."""

    def look(self) -> None:
        """Read what is new."""
        for line in self._new_lines():
            self._take(parse_event(line))

    def skip(self) -> None:
        """What is there now belongs to a former start."""
        self._new_lines()

    def _new_lines(self) -> list[bytes]:
        """What was written since the last look, without a line that is still being written."""
        with contextlib.suppress(FileNotFoundError), (self.folder / "events.jsonl").open("rb") as file:
            if file.read(len(self._head)) != self._head:  # the former start came to nothing: its file was replaced
                self._head, self._read = b"", 0
            file.seek(self._read)
            *lines, rest = file.read().split(b"\n")
            self._read = file.tell() - len(rest)
            self._head = self._head or b"".join(lines[:1])
            return lines
        return []

    def progress(self) -> Progress:
        """How far it has come."""
        return Progress(self.step, time.time() - self.began if self.began is not None else 0.0)

    def due(self, schedule: Schedule, before: Progress) -> tuple[list[Action], Progress]:
        """Look; what became due since `before`, and how far it has come. A run that has ended is left in peace."""
        self.look()
        if self.ended:
            return [], before
        now = self.progress()
        # Between two looks a resumed run may say where it begins and take its first steps: those before are not ours.
        return schedule.due(Progress(max(before.step, self.first), before.seconds), now), now

    def _take(self, event: events.Event) -> None:
        if isinstance(event, events.StartEvent):
            self.workers.clear()
            self.gone.clear()
            self.met, self.ended = True, False
        elif isinstance(event, events.StepEvent):
            self.step = event.step
        elif isinstance(event, events.JobEvent):
            self.step = self.first = event.steps
        elif isinstance(event, events.WorkerEvent):
            self.began = self.began or event.time
            self.workers[event.worker] = (event.host, event.pid)
        elif isinstance(event, events.FailureEvent | events.LeftEvent):
            if (gone := self.workers.pop(event.worker, None)) is not None:
                self.gone[event.worker] = gone
        elif isinstance(event, events.EndEvent):
            self.workers.clear()
            self.ended = True


def follow_run(twin: Twin, folder: Path | None = None) -> RunFollower:
    """The run that is in progress on a twin: the one that `twin run` started, or the one in `folder`."""
    if folder is None:
        folder = last_run(twin)
        if folder is None:
            raise UsageError(f"no run was started on twin {twin.name} by `cordee twin run`: name it with --run FOLDER")
    if not (folder / "events.jsonl").is_file():
        raise UsageError(f"{folder} holds no run that has begun: there is no events.jsonl in it")
    follower = RunFollower(folder)
    follower.look()
    return follower
