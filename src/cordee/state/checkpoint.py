"""The checkpoints of a run: written in the background, visible only when whole, the old ones tidied away."""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from types import TracebackType

from cordee.core.errors import CheckpointError, UsageError, WaitedTooLong
from cordee.state.files import need_space, storage_errors
from cordee.state.layout import read_folder, read_header, tensor_bytes, verify, write_folder
from cordee.state.naming import Snapshot
from cordee.state.owners import Owners
from cordee.state.places import STEP, discard, folder_name, hidden, lock, put_in_place, sweep


@dataclass(frozen=True)
class Saved:
    """One finished save."""

    step: int
    path: Path
    bytes: int
    seconds: float


class Checkpoints:
    """The folder of a run's checkpoints, `step-00000123` and so on; one process writes, any may read."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep_last: int = 3,
        keep_best: str | None = None,
        shard_bytes: int = 1 << 30,
        deadline_s: float = 600.0,
        owners: Owners | None = None,
    ) -> None:
        """Keep the `keep_last` newest and the best by `keep_best`: `"accuracy"`, or `"-loss"` where less is better.

        `owners` says which of several writers this is, where workers hold slices.
        """
        for name, value in (("keep_last", keep_last), ("shard_bytes", shard_bytes), ("deadline_s", deadline_s)):
            if value <= 0:
                raise UsageError(f"{name}={value}: expected more than 0.")
        if keep_best is not None and not keep_best.lstrip("-"):
            raise UsageError(
                f"keep_best={keep_best!r}: expected the name of a metric, with a leading minus if less is better."
            )
        self.folder = Path(folder)
        self.keep_last = keep_last
        self.keep_best = keep_best
        self.shard_bytes = shard_bytes
        self.deadline_s = deadline_s
        self.owners = owners or Owners()
        self.last: Saved | None = None
        """The latest save that this object finished."""
        self._pending: Future[Saved] | None = None
        self._step = 0
        self._read = Event()
        """Set when the save under way needs no tensor of its snapshot any more."""
        if self.owners.first:
            sweep(self.folder)

    def save(
        self,
        snapshot: Snapshot,
        *,
        step: int,
        metrics: Mapping[str, float] | None = None,
        wait: bool = False,
        on_saved: Callable[[Saved], None] = lambda saved: None,
    ) -> None:
        """Write a checkpoint in the background, after the one before it; an earlier save's error is raised here.

        `on_saved` is called by the thread that writes, once the checkpoint stands. Tensors of a live snapshot must not
        change before `await_read` returns.
        """
        self._settle(block=True)

        def work() -> Saved:
            try:
                saved = self._write(snapshot, step, dict(metrics or {}))
            finally:
                self._read.set()
            on_saved(saved)
            return saved

        self._step, self._pending, self._read = step, Future(), Event()
        # A daemon: a disk that no longer answers must not keep the process from ending.
        Thread(target=_fulfil, args=(self._pending, work), name="cordee-checkpoint", daemon=True).start()
        if wait:
            self._settle(block=True)

    @property
    def under_way(self) -> int | None:
        """The step whose checkpoint is being written at this moment; None if none is."""
        pending = self._pending
        return self._step if pending is not None and not pending.done() else None

    def await_end(self, seconds: float) -> bool:
        """Give the save under way so long to end; False if it has not. Any thread may ask, and no error is raised."""
        pending = self._pending
        return pending is None or not wait_for([pending], seconds).not_done

    def await_read(self) -> None:
        """Wait until the save under way needs no tensor of its snapshot any more, so that live ones may change."""
        if self._pending is not None and not self._pending.done() and not self._read.wait(self.deadline_s):
            raise self._too_long()

    @property
    def problem(self) -> BaseException | None:
        """What went wrong with a save that has ended and was not reported yet."""
        pending = self._pending
        return pending.exception() if pending is not None and pending.done() else None

    def check(self) -> None:
        """Raise the error of a save that has ended, without waiting for one that has not."""
        self._settle(block=False)

    def close(self) -> None:
        """Wait for the save under way and raise its error."""
        self._settle(block=True)

    def __enter__(self) -> Checkpoints:
        """Use as a context: the last save is whole when the block ends."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close; see `close`."""
        self.close()

    def list(self) -> list[tuple[int, Path]]:
        """All complete checkpoints as (step, folder), oldest step first."""
        if not self.folder.is_dir():
            return []
        found = ((STEP.fullmatch(path.name), path) for path in self.folder.iterdir())
        return sorted((int(match.group(1)), path) for match, path in found if match)

    def latest(self) -> Path | None:
        """The checkpoint of the highest step, or None."""
        return next((path for _, path in reversed(self.list())), None)

    def read_latest(self) -> tuple[Snapshot | None, Sequence[CheckpointError]]:
        """The newest checkpoint that can be read, or None; and why newer ones cannot."""
        problems = deque[CheckpointError]()
        for _, path in reversed(self.list()):
            try:
                return read_folder(path, check=True), problems
            except CheckpointError as problem:
                problems.append(problem)
        return None, problems

    def best(self) -> Path | None:
        """The checkpoint with the best value of the `keep_best` metric (the first of equal ones), or None."""
        if self.keep_best is None:
            return None
        sign, name = (-1.0 if self.keep_best.startswith("-") else 1.0), self.keep_best.lstrip("-")
        values: list[tuple[float, int, Path]] = []
        for step, path in self.list():
            try:
                metrics = read_header(path).metrics
            except CheckpointError:
                continue  # a damaged one cannot be the best; read() will say so to its caller
            if name in metrics:
                values.append((sign * metrics[name], -step, path))
        return max(values)[2] if values else None

    def read(self, which: int | str | os.PathLike[str], *, verify: bool = True, only: str = "") -> Snapshot:
        """Read the checkpoint of a step, or in a folder; a damaged one is an error that names an intact one.

        `only`: of its tensors, those whose names begin so.
        """
        path = self.folder / folder_name(which) if isinstance(which, int) else Path(which)
        if not path.is_dir():
            steps = ", ".join(str(step) for step, _ in self.list()) or "none"
            raise CheckpointError(f"no checkpoint at {path}; {self.folder} holds the steps: {steps}.")
        try:
            return read_folder(path, check=verify, only=only)
        except CheckpointError as problem:
            others = (other for _, other in reversed(self.list()) if other != path)
            intact = next((other for other in others if _is_intact(other)), None)
            hint = f"The newest intact one is {intact}." if intact else "There is no other intact one here."
            raise CheckpointError(f"{problem} {hint}") from problem

    def _settle(self, *, block: bool) -> None:
        if self._pending is None or not (block or self._pending.done()):
            return
        try:
            self.last = self._pending.result(self.deadline_s)
        except FutureTimeout as problem:
            raise self._too_long() from problem
        except BaseException:
            self._pending = None
            raise
        self._pending = None

    def _too_long(self) -> WaitedTooLong:
        return WaitedTooLong(
            f"the checkpoint under way in {self.folder} was not written within {self.deadline_s:g} s. "
            "Check that the disk still answers."
        )

    def _write(self, snapshot: Snapshot, step: int, metrics: dict[str, float]) -> Saved:
        began = time.monotonic()
        final = self.folder / folder_name(step)
        needed = tensor_bytes(snapshot.tensors.values())
        with storage_errors(final, needed):
            self.folder.mkdir(parents=True, exist_ok=True)
            need_space(self.folder, needed)
            if not self.owners.first:
                size = self.owners.write(snapshot, final, self.shard_bytes, self.deadline_s, self._read.set)
                return Saved(step, final, size, time.monotonic() - began)
            folder = hidden(final, "new", self.owners.token)
            mine = lock(folder)
            try:
                size = write_folder(
                    folder,
                    snapshot,
                    step=step,
                    metrics=metrics,
                    shard_bytes=self.shard_bytes,
                    on_read=self._read.set,
                    others=lambda: self.owners.parts(folder, self.deadline_s),
                )
                put_in_place(folder, final)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            finally:
                if mine is not None:
                    os.close(mine)
            self._prune(final)
        return Saved(step, final, size, time.monotonic() - began)

    def _prune(self, newest: Path) -> None:
        """Discard what neither `keep_last` nor `keep_best` keeps; the one just written always stays."""
        kept = {newest, self.best(), *(path for _, path in self.list()[-self.keep_last :])}
        for _, path in self.list():
            if path not in kept:
                discard(path)


def _fulfil(future: Future[Saved], work: Callable[[], Saved]) -> None:
    """Run `work` and leave its result or its error in `future`."""
    try:
        future.set_result(work())
    except BaseException as problem:
        future.set_exception(problem)


def _is_intact(path: Path) -> bool:
    try:
        verify(path)
    except CheckpointError:
        return False
    return True
