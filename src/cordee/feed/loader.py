"""Gathers batches into reused memory, the next one ahead of time when that pays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from types import TracebackType

import torch

from cordee.core.errors import WaitedTooLong
from cordee.feed.batch import Batch
from cordee.feed.memory import Gathered, Memory
from cordee.feed.overdue import Overdue
from cordee.feed.permute import Ids
from cordee.feed.source import Source, kind_of

_WORTH_A_THREAD_S = 0.0005  # handing a batch from thread to thread costs about a tenth of this
_SLOW_IN_A_ROW, _SLOW_S = 5, 0.1
"""So many slow gathers, which take so long together, are the source's own; fewer may be those of a busy machine."""
_FIRST_TIMINGS = 3
_CLOSING_S = 2.0


class Loader:
    """Batches of one source on one device: ask with `request`, fetch with `take`.

    Memory is reused: the tensors of a batch stay as they are until `depth` more batches were taken. With `ahead=None`
    gathers are timed, and a background thread takes over when many in a row are slow. Not for several callers at once.
    """

    def __init__(
        self,
        source: Source,
        *,
        device: str | torch.device = "cpu",
        depth: int = 2,
        ahead: bool | None = None,
        deadline_s: float = 300.0,
        seed: int = 0,
        who: str = "this process",
        late: Callable[[str], None] = lambda awaited: None,
    ) -> None:
        """Start nothing yet; a thread begins with the first request that it serves. `seed`: of a dataset's draws.

        A wait that is too long raises an error, which names `who` waited. Where the caller's own thread reads, which
        cannot be interrupted, `late` is told what is awaited.
        """
        if depth < 1:
            raise ValueError(f"depth={depth}: at least 1 batch must stay valid while the next one is gathered")
        self.source = source
        self.deadline_s = deadline_s
        self._who, self._what = who, f"samples from a {kind_of(source)}"
        self._overdue = Overdue(deadline_s, lambda: late(self._what)) if source.traits.runs_user_code else None
        self._memory = Memory(source, torch.device(device), depth, seed=seed, deadline_s=deadline_s)
        # A copy to a GPU only overlaps with the computation if it begins before the batch is taken.
        self._ahead = (self._memory.copies or source.traits.far) if ahead is None else ahead
        self._may_change = ahead is None and not self._memory.on_gpu
        self.hold = False
        """Set it to gather nothing ahead for now: what the dataset draws would come between another thread's draws."""
        self._timings = 0
        self._slow: list[float] = []
        """How long the last gathers took, since one was quick."""
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        # All below is guarded by _changed.
        self._asked: dict[Hashable, tuple[Ids, int]] = {}
        self._ready: dict[Hashable, Gathered | BaseException] = {}
        self._gathering: Hashable | None = None
        self._wanted: Hashable | None = None
        self._generation = 0
        self._closed = False

    @property
    def ahead(self) -> bool:
        """Whether a background thread gathers."""
        return self._ahead and not self.hold

    @property
    def plain(self) -> bool:
        """Whether samples are copied from main memory to main memory, and nothing is drawn or computed for them."""
        return self._memory.plain

    @property
    def quick(self) -> bool | None:
        """Whether gathers take little time, by the first ones; None: not known yet."""
        return None if self._timings < _FIRST_TIMINGS else not self._slow

    def request(self, key: Hashable, ids: Ids, epoch: int = 0) -> None:
        """Ask for the samples `ids` of an epoch under the name `key`; returns at once."""
        with self._changed:
            if self._closed:
                raise ValueError("the loader is closed")
            if key in self._asked or key in self._ready or key == self._gathering:
                raise ValueError(f"{key!r} was requested already and not taken yet")
            self._asked[key] = ids, epoch
            if self._ahead and self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="cordee-loader", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def take_now(self, ids: Ids, epoch: int = 0) -> Batch:
        """The samples `ids`, gathered here and now: without a thread there is nothing to ask ahead for."""
        gathered = self._timed(ids, epoch)
        self._memory.hand_out(gathered)
        return Batch(gathered.ids, gathered.fields)

    def take(self, key: Hashable) -> Batch:
        """The batch that was requested as `key`, waiting for it at most `deadline_s`."""
        gathered = self._await(key) if self._thread else self._gather_now(key)
        with self._changed:
            self._memory.hand_out(gathered)
            self._changed.notify_all()
        return Batch(gathered.ids, gathered.fields)

    def cancel(self) -> None:
        """Forget everything that was requested and not taken."""
        with self._changed:
            self._generation += 1
            self._asked.clear()
            for outcome in self._ready.values():
                if isinstance(outcome, Gathered):
                    self._memory.give_back(outcome.buffers)
            self._ready.clear()
            self._gathering = None
            self._changed.notify_all()

    def close(self) -> None:
        """Cancel, and end the thread, unless it hangs in a gather: then it is left behind and ends with the process."""
        self.cancel()
        if self._overdue is not None:
            self._overdue.close()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(min(self.deadline_s, _CLOSING_S))

    def __enter__(self) -> Loader:
        """Close at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _gather_now(self, key: Hashable) -> Gathered:
        with self._changed:
            if key not in self._asked:
                raise ValueError(f"{key!r} was not requested, or was cancelled")
            ids, epoch = self._asked.pop(key)
        return self._timed(ids, epoch)

    def _timed(self, ids: Ids, epoch: int) -> Gathered:
        began = time.perf_counter()
        with self._overdue or nullcontext():
            gathered = self._memory.gather(ids, epoch)
        if not self._may_change:
            return gathered
        self._timings += 1
        if (took := time.perf_counter() - began) <= _WORTH_A_THREAD_S:
            self._slow.clear()
            return gathered
        self._slow.append(took)
        if len(self._slow) >= _SLOW_IN_A_ROW and sum(self._slow) >= _SLOW_S:
            self._ahead, self._may_change = True, False
        return gathered

    def _await(self, key: Hashable) -> Gathered:
        deadline = time.monotonic() + self.deadline_s
        with self._changed:
            if not (key in self._asked or key in self._ready or key == self._gathering):
                raise ValueError(f"{key!r} was not requested, or was cancelled")
            self._wanted = key
            self._changed.notify_all()
            try:
                while key not in self._ready:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise WaitedTooLong(
                            f"{self._who} waited {self.deadline_s:g} s for {self._what}, those of {key!r}: reading "
                            "hangs or is slow; look at the storage, or allow more time (--deadline)"
                        )
                    self._changed.wait(left)
            finally:
                self._wanted = None
            outcome = self._ready.pop(key)
            self._changed.notify_all()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _serve(self) -> None:
        """The thread: gather what was asked for in that order, but first what is waited for."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._next_key() is not None)
                if self._closed:
                    return
                key = self._next_key()
                (ids, epoch), generation = self._asked.pop(key), self._generation
                self._gathering = key
            outcome: Gathered | BaseException
            try:
                outcome = self._memory.gather(ids, epoch)
            except BaseException as error:
                outcome = error
            with self._changed:
                if generation == self._generation:
                    self._ready[key] = outcome
                    self._gathering = None
                elif isinstance(outcome, Gathered):
                    self._memory.give_back(outcome.buffers)
                self._changed.notify_all()
            del outcome

    def _next_key(self) -> Hashable | None:
        """What to gather now, if anything: new memory is only made for a batch that is waited for."""
        if self._wanted in self._asked:
            return self._wanted
        return next(iter(self._asked), None) if self._memory.has_free() else None
