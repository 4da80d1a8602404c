"""Gathers batches into reused memory, the next one ahead of time when that pays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from queue import SimpleQueue

import torch

from cordee.core.errors import WaitedTooLong
from cordee.feed.batch import Batch
from cordee.feed.memory import Gathered, Memory
from cordee.feed.permute import Ids
from cordee.feed.source import Source, kind_of

_WORTH_A_THREAD_S = 0.0005  # handing a batch from thread to thread costs about a tenth of this
_SLOW_IN_A_ROW, _SLOW_S = 5, 0.1
"""So many slow gathers, which take so long together, are the source's own; fewer may be those of a busy machine."""
_FIRST_TIMINGS = 3
_CLOSING_S = 2.0
_LATE = 0.9
"""The part of the deadline after which a read is late: peers that wait for this worker are about to give up too."""

Request = Future[Gathered]
"""A batch that the thread gathers."""


class Loader:
    """Batches of one source on one device: gathered now, or by a thread that was asked for them before.

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
        """Start nothing yet; threads begin with the first batch that they are needed for. `seed`: of a dataset's draws.

        A wait that is too long raises an error, which names `who` waited. Where the caller's own thread reads, which
        cannot be interrupted, `late` is told what is awaited.
        """
        self.deadline_s = deadline_s
        self._who, self._what = who, f"samples from a {kind_of(source)}"
        self._memory = Memory(source, torch.device(device), depth, seed=seed, deadline_s=deadline_s)
        self.plain = not source.traits.runs_user_code and torch.device(device).type == "cpu"
        """Whether samples are copied from main memory to main memory, and nothing is drawn or computed for them."""
        # A copy to a GPU only overlaps with the computation if it begins before the batch is taken.
        self._ahead = self._memory.copies if ahead is None else ahead
        self._may_change = ahead is None and not self._memory.on_gpu
        self.hold = False
        """Set it to gather nothing ahead for now: what the dataset draws would come between another thread's draws."""
        self._timings = 0
        self._slow: list[float] = []
        """How long the last gathers took, since one was quick."""
        self._thread: threading.Thread | None = None
        self._requests: SimpleQueue[tuple[Request, Ids, int] | None] = SimpleQueue()
        self._late = late
        self._watched = source.traits.runs_user_code
        self._watcher: threading.Thread | None = None
        self._reading_since: float | None = None
        self._closed = threading.Event()

    @property
    def ahead(self) -> bool:
        """Whether a background thread gathers."""
        return self._ahead and not self.hold

    @property
    def quick(self) -> bool | None:
        """Whether gathers take little time, by the first ones; None: not known yet."""
        return None if self._timings < _FIRST_TIMINGS else not self._slow

    def request(self, ids: Ids, epoch: int = 0) -> Request:
        """Let the thread gather the samples `ids` of an epoch; one batch at a time may be asked for ahead."""
        if self._thread is None:
            self._thread = self._start(self._serve, "cordee-loader")
        request = Request()
        self._requests.put((request, ids, epoch))
        return request

    def take(self, request: Request) -> Batch:
        """The batch that was requested, waiting for it at most `deadline_s`."""
        try:
            return self._hand_out(request.result(self.deadline_s))
        except FutureTimeout as error:
            if request.done():  # an error of the source's own
                raise
            raise WaitedTooLong(
                f"{self._who} waited {self.deadline_s:g} s for {self._what}: reading hangs or is slow; look at the "
                "storage, or allow more time (--deadline)"
            ) from error

    def cancel(self, request: Request) -> None:
        """It is not needed any more."""
        request.cancel()
        self._memory.renew()

    def take_now(self, ids: Ids, epoch: int = 0) -> Batch:
        """The samples `ids`, gathered here and now."""
        began = time.perf_counter()
        if self._watched:
            self._reading_since = time.monotonic()
            if self._watcher is None:
                self._watcher = self._start(self._watch, "cordee-overdue")
        try:
            gathered = self._memory.gather(ids, epoch)
        finally:
            self._reading_since = None
        if self._may_change:
            self._learn(time.perf_counter() - began)
        return self._hand_out(gathered)

    def close(self) -> None:
        """End the threads, unless one hangs in a gather: then it is left behind and ends with the process."""
        self._closed.set()
        self._requests.put(None)
        if self._thread is not None:
            self._thread.join(min(self.deadline_s, _CLOSING_S))

    @staticmethod
    def _start(work: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread

    def _hand_out(self, gathered: Gathered) -> Batch:
        self._memory.await_copy(gathered)
        return Batch(gathered.ids, gathered.fields)

    def _learn(self, took_s: float) -> None:
        """Whether a thread is worth its while."""
        self._timings += 1
        if took_s <= _WORTH_A_THREAD_S:
            self._slow.clear()
            return
        self._slow.append(took_s)
        if len(self._slow) >= _SLOW_IN_A_ROW and sum(self._slow) >= _SLOW_S:
            self._ahead, self._may_change = True, False

    def _serve(self) -> None:
        """The thread: gather what was asked for, in that order."""
        while (asked := self._requests.get()) is not None:
            request, ids, epoch = asked
            if request.set_running_or_notify_cancel():
                try:
                    request.set_result(self._memory.gather(ids, epoch))
                except BaseException as error:
                    request.set_exception(error)
            del asked, request  # and with it the batch

    def _watch(self) -> None:
        """A thread: notice that the user's code reads for too long in the caller's thread, and say so once."""
        limit_s = _LATE * self.deadline_s
        while not self._closed.wait(min(1.0, limit_s / 4)):
            since = self._reading_since
            if since is not None and time.monotonic() - since > limit_s:
                self._late(self._what)
                return
