"""A worker's connection to the coordinator: it is told at once when a peer is lost, independent of any collective."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from cordee.core.errors import CoordinatorLost, Evicted, WaitedTooLong, WorkerFailed
from cordee.group import messages
from cordee.group.client import IN_GENERATION, PARTS, STALL_S, Client
from cordee.group.messages import Go, Message
from cordee.group.wire import Address


class Unconnected:
    """In the place of a channel where a process trains alone: it has no peers, and what it posts is dropped."""

    worker = 0
    name = "the only worker"
    clock_offset_s = paused_s = 0.0
    recorded = broken = -1
    stop_reason: str | None = None
    newcomers = joining = False
    lost: frozenset[int] = frozenset()

    def __init__(self) -> None:
        """Nothing to connect to."""
        self.at = "starting"
        self.settings: dict[str, str] = {}
        self.on_break: Callable[[], None] = lambda: None
        self.before_end: Callable[[], None] = lambda: None

    def _nothing(self, *_: Any) -> None:
        """There is no coordinator to tell."""

    post = send = stuck = heed = part = close = _nothing


class Channel:
    """The connection of one worker to the coordinator of its run. What a generation is by it: `Membership`."""

    def __init__(self, address: Address, worker: int, host: str, *, joins: bool = False) -> None:
        """Connect and start listening. `joins`: this worker comes in later, between two steps of the others."""
        self.worker = worker
        self.joining = joins
        """Whether this worker comes in while others train, and does not have their state yet."""
        self.newcomers = False
        """Whether others wait to come in, or are to leave."""
        self.name = f"worker {worker} on {host}"
        self.on_break: Callable[[], None] = lambda: None
        self.before_end: Callable[[], None] = lambda: None
        """What is left to do when the run ends early; see `part`."""
        self.stop_reason: str | None = None
        self.address = address
        self.holders: messages.Holders | None = None
        """Which parameter servers hold what; None before all of them are there, or if the run has none."""
        self.on_holders: list[Callable[[], None]] = []
        """Called when that has changed."""
        self.recorded = -1
        """The last step that the hub had on record when this generation began."""
        self.go: Go | None = None
        """The generation that was announced last."""
        self._entered: Go | None = None
        """The last one that this worker is a member of."""
        self.broken = -1
        """The last generation of which a member was lost."""
        self.values: dict[str, bytes] = {}
        """What peers published in this generation, as far as it was asked for."""
        self.ticket: messages.Ticket | messages.WindowOver | None = None
        """The answer to the last `Take` or `Done`, once it has come."""
        self.lost: set[int] = set()
        """The workers that were lost so far."""
        self.farewell = False
        """Whether all have finished, or this worker has left."""
        self._turn = threading.Condition()
        self._aborted = threading.Event()
        self._parting = threading.Lock()
        self._client = Client(address, messages.Who("worker", host, worker), self._hear, self._lost, self._back)
        self.settings = self._client.settings
        self.post, self.send = self._client.post, self._client.send
        self._client.start()

    @property
    def at(self) -> str:
        """What this worker is doing; named when others wait for it in vain."""
        return self._client.at

    @at.setter
    def at(self, what: str) -> None:
        self._client.at = what

    @property
    def clock_offset_s(self) -> float:
        """What to add to this host's clock to get the coordinator's."""
        return self._client.clock_offset_s

    @property
    def paused_s(self) -> float:
        """For how long this process did not run so far."""
        return self._client.pauses.total_s

    # ------------------------------------------------------------- what the training thread calls

    def wait(self, happened: Callable[[], bool], deadline_s: float) -> bool:
        """Wait until the coordinator's messages made this true; False if they did not within so long."""
        with self._turn:
            return self._turn.wait_for(happened, deadline_s)

    def require(self, happened: Callable[[], bool], deadline_s: float, what: str) -> None:
        """The same for what must happen; for a worker that has not come in yet, the others do not fail with it."""
        if not self.wait(happened, deadline_s):
            if not self.joining:
                self.stuck(what, deadline_s)
            raise WaitedTooLong(f"{self.name} waited {deadline_s:.0f} s for {what}")

    def stuck(self, what: str, seconds: float) -> None:
        """Say that a wait for `what` reached its deadline; the hub knows who did not come."""
        self.send(messages.Stuck(what, seconds))

    def heed(self) -> None:
        """Asked with every step: if the run was ended from elsewhere, go no further; this process is about to end."""
        while self._aborted.is_set():
            time.sleep(STALL_S)

    def part(self) -> None:
        """The run ends early: do what is left to do, once; a second caller waits for the first."""
        with self._parting:
            left, self.before_end = self.before_end, lambda: None
            with contextlib.suppress(Exception):  # it has failed already, and that is what is told
                left()

    def give_way(self, reason: str) -> None:
        """Leave the run for good, which goes on without this worker: does not return."""
        self.send(messages.Lose(self.worker, reason))
        while True:  # until the hub has said that it is evicted, which ends this process
            time.sleep(STALL_S)

    def close(self) -> None:
        """Send what is left and hang up, once the coordinator has read it."""
        self.farewell = True
        self._client.close()

    # ------------------------------------------------------------- threads

    def _back(self) -> Message:
        return messages.Back(self._entered, self.broken, sorted(self.lost))

    def _lost(self, how: str) -> None:
        if not self.farewell:
            _end(CoordinatorLost.code, f"cordee: worker {self.worker} {how} its launcher and ends")

    def _hear(self, message: Message) -> None:
        with self._turn:
            match message:
                case messages.Break(generation, lost):
                    self.broken = max(self.broken, generation)
                    self.lost |= set() if lost is None else {lost}
                    self.values.clear()
                    self.on_break()
                case Go():
                    self.values.clear()
                    self.go, self.recorded = message, message.recorded
                    self.newcomers = self.newcomers and not message.admits
                    self.farewell |= self.worker in message.left
                    if self.worker in message.members:
                        self._entered = message
                        self._client.forget(IN_GENERATION)
                case messages.Holders():
                    self.holders = message
                    for callback in self.on_holders:
                        callback()
                case messages.Newcomers(workers, leaving):
                    self.newcomers = bool(workers or leaving)
                case messages.Value(key, value):
                    self.values[key] = value
                case messages.Ticket() | messages.WindowOver():
                    self.ticket = message
                    self._client.forget(PARTS)
                case messages.Farewell():
                    self.farewell = True
                    if self.joining:  # the run is over, and nothing of it is ours
                        _end(0)
                case messages.Stop(reason):
                    self.stop_reason = reason
                case messages.Evicted(reason) if not self.farewell:
                    _end(Evicted.code, f"cordee: worker {self.worker} was evicted: {reason}")
                case messages.Abort():
                    self._aborted.set()
                    # On a thread of its own: the hub may have more to say while a file is being written.
                    threading.Thread(target=self._give_up, name="cordee-parting", daemon=True).start()
            self._turn.notify_all()

    def _give_up(self) -> None:
        self.part()
        self.send()
        _end(WorkerFailed.code)


def _end(code: int, word: str = "") -> None:
    """End this process at once: its training thread may sit in a collective that never ends."""
    if word:
        sys.stderr.write(word + "\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
