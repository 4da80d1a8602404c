"""The checkpoints of a run: written in the background, visible only when whole, the old ones tidied away."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from cordee.core.errors import CheckpointError, UsageError, WaitedTooLong
from cordee.core.locks import lock
from cordee.state.files import need_space, storage_errors, sync
from cordee.state.index import folder_name, list_checkpoints, read_index
from cordee.state.layout import Owners, read_folder, tensor_bytes, write_folder
from cordee.state.naming import Snapshot
from cordee.state.staging import Staging

_HIDDEN = re.compile(r"\.(step-\d{8,})\.(old|(?:new|gone)-.*)")


class Checkpoints:
    """The folder of a run's checkpoints, `step-00000123` and so on; one process writes, any may read."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep_last: int = 3,
        keep_best: str | None = None,
        deadline_s: float = 600.0,
        owners: Owners | None = None,
        write: Callable[[Snapshot, int, Mapping[str, float], Callable[[], None]], Path] | None = None,
    ) -> None:
        """Keep the `keep_last` newest and the best by `keep_best`: `"accuracy"`, or `"-loss"` where less is better.

        `owners` says which of several writers this is, where workers hold slices. `write` may take the place of what
        writes one: it returns where.
        """
        if keep_last <= 0:
            raise UsageError(f"keep_last={keep_last}: expected more than 0.")
        self.folder = Path(folder)
        self.keep_last = keep_last
        self.keep_best = keep_best
        self.deadline_s = deadline_s
        self.owners = owners or Owners()
        self._pending: Future[None] | None = None
        self._step = self._again = 0
        """The step of the last save, and how many before it were of the same step."""
        self._read = Event()
        """Set when the save under way needs no tensor of its snapshot any more."""
        self._staging = Staging()
        self._put = write or self._write
        if self.owners.first:
            sweep(self.folder)

    def save(
        self,
        snapshot: Snapshot,
        *,
        step: int,
        metrics: Mapping[str, float] | None = None,
        wait: bool = False,
        live: bool = False,
        on_saved: Callable[[Path], None] = lambda path: None,
    ) -> None:
        """Write a checkpoint in the background, after the one before it; an earlier save's error is raised here.

        `on_saved` is called by the thread that writes, once the checkpoint stands. Tensors of a `live` snapshot must
        not change before `await_read` returns: they are copied first, if there is memory for it.
        """
        self.close()
        self._again = self._again + 1 if step == self._step else 0
        self._step, self._pending, self._read = step, Future(), Event()

        def work(future: Future[None], read: Event) -> None:
            try:
                copy = self._staging.copied(snapshot) if live else None
                if copy is not None:
                    read.set()
                on_saved(self._put(copy or snapshot, step, metrics or {}, read.set))
                future.set_result(None)
            except BaseException as problem:
                future.set_exception(problem)
            finally:
                read.set()

        # A daemon: a disk that no longer answers must not keep the process from ending.
        Thread(target=work, args=(self._pending, self._read), name="cordee-checkpoint", daemon=True).start()
        if wait:
            self.close()

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
        if self._pending is not None and not self._read.wait(self.deadline_s):
            raise self._too_long()

    @property
    def problem(self) -> BaseException | None:
        """What went wrong with a save that has ended and was not reported yet."""
        pending = self._pending
        return pending.exception() if pending is not None and pending.done() else None

    def close(self) -> None:
        """Wait for the save under way and raise its error."""
        if not self.await_end(self.deadline_s):
            raise self._too_long()
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def list(self) -> list[tuple[int, Path]]:
        """All complete checkpoints as (step, folder), oldest step first."""
        return list_checkpoints(self.folder)

    def read_latest(self, memory: Path | None = None) -> tuple[Snapshot | None, Sequence[CheckpointError]]:
        """The newest checkpoint that can be read, here or in `memory`, or None; and why newer ones cannot."""
        problems: Sequence[CheckpointError] = ()
        held = [] if memory is None else list_checkpoints(memory)
        for _, path in sorted([*held, *self.list()], key=lambda one: one[0], reverse=True):
            try:
                return read_folder(path), problems
            except CheckpointError as problem:
                problems = (*problems, problem)
        return None, problems

    def best(self) -> Path | None:
        """The checkpoint with the best value of the `keep_best` metric (the first of equal ones), or None."""
        if self.keep_best is None:
            return None
        sign, name = (-1.0 if self.keep_best.startswith("-") else 1.0), self.keep_best.lstrip("-")
        values: list[tuple[float, int, Path]] = []
        for step, path in self.list():
            try:
                metrics = read_index(path)["metrics"]
            except CheckpointError:
                continue  # a damaged one cannot be the best
            if name in metrics:
                values.append((sign * metrics[name], -step, path))
        return max(values)[2] if values else None

    def read(self, step: int, only: str = "") -> Snapshot:
        """Read the checkpoint of a step; `only`: of its tensors, those whose names begin so."""
        path = self.folder / folder_name(step)
        if not path.is_dir():
            steps = ", ".join(str(step) for step, _ in self.list()) or "none"
            raise CheckpointError(f"no checkpoint at {path}; {self.folder} holds the steps: {steps}.")
        return read_folder(path, only)

    def _too_long(self) -> WaitedTooLong:
        return WaitedTooLong(
            f"the checkpoint under way in {self.folder} was not written within {self.deadline_s:g} s. "
            "Check that the disk still answers."
        )

    @property
    def _token(self) -> str:
        """Of the save under way; one of the same step may just be put in place by the first of several owners."""
        return f"{self.owners.token}-{self._again}" if self.owners.token else ""

    def _write(self, snapshot: Snapshot, step: int, metrics: Mapping[str, float], on_read: Callable[[], None]) -> Path:
        final = self.folder / folder_name(step)
        needed = tensor_bytes(snapshot.tensors.values())
        with storage_errors(final, needed):
            self.folder.mkdir(parents=True, exist_ok=True)
            need_space(self.folder, needed)
            if not self.owners.first:
                self.owners.write(snapshot, unfinished(final, self._token), self.deadline_s, on_read)
                return final
            with writing(final, self._token) as folder:
                others = self.owners.parts(folder, self.deadline_s)
                write_folder(folder, snapshot, step=step, metrics=metrics, on_read=on_read, others=others)
            self._prune(final)
        return final

    def _prune(self, newest: Path) -> None:
        """Discard what neither `keep_last` nor `keep_best` keeps; the one just written always stays."""
        kept = {newest, self.best(), *(path for _, path in self.list()[-self.keep_last :])}
        for _, path in self.list():
            if path not in kept:
                discard(path)


def unfinished(final: Path, token: str) -> Path:
    """Where the owners that share `token` write the checkpoint `final`: no reader takes this folder for one."""
    return final.with_name(f".{final.name}.new-{token}")


@contextmanager
def _locked(folder: Path) -> Iterator[bool | None]:
    """Lock a folder; gives what `lock` says. The system releases it when the process ends, however it ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield lock(handle)
    finally:
        os.close(handle)


@contextmanager
def writing(final: Path, token: str) -> Iterator[Path]:
    """The unfinished folder of `final`, put into its place at the end of the block, and removed if that fails."""
    folder = unfinished(final, token or secrets.token_hex(4))
    folder.mkdir()
    with _locked(folder):
        try:
            yield folder
            put_in_place(folder, final)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def put_in_place(folder: Path, final: Path) -> None:
    """Rename a whole checkpoint to its name; one that was written at the same step before steps aside."""
    old = final.with_name(f".{final.name}.old")
    if final.exists():
        final.rename(old)
    try:
        folder.rename(final)
    except OSError:
        if old.exists():
            old.rename(final)
        raise
    sync(final.parent)
    if old.exists():
        discard(old)


def discard(path: Path) -> None:
    """Delete a checkpoint so that no half of it is ever taken for a whole one."""
    name = path.name.lstrip(".").removesuffix(".old")
    gone = path.with_name(f".{name}.gone-{secrets.token_hex(4)}")
    path.rename(gone)
    shutil.rmtree(gone)


def sweep(folder: Path) -> None:
    """Remove what dead writers left behind, and give back its name to a checkpoint that was just being replaced."""
    for path in list(folder.iterdir()) if folder.is_dir() else []:
        found = _HIDDEN.fullmatch(path.name)
        if not found:
            continue
        with (
            suppress(OSError),
            _locked(path) as mine,
        ):  # gone already; or nothing may be changed here, says the next save
            if not mine:  # its writer lives; or there are no locks here, and leftovers only cost space
                continue
            final = folder / found.group(1)
            if found.group(2) == "old" and not final.exists():
                path.rename(final)
            else:
                shutil.rmtree(path, ignore_errors=True)
