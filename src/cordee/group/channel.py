"""A worker's connection to the coordinator: it is told at once when a peer is lost, independent of any collective."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable

from cordee.core.errors import CoordinatorLost, Evicted, WaitedTooLong, WorkerFailed
from cordee.core.events import Event
from cordee.group.client import Client
from cordee.group.messages import News
from cordee.group.protocol import STALL_S, Go
from cordee.group.wire import Address, Message


class Unconnected:
    """In the place of a channel where a process trains alone: it has no peers, and what it posts is dropped."""

    worker = 0
    name = "the only worker"
    clock_offset_s = 0.0
    recorded = -1
    stop_reason: str | None = None
    newcomers = joining = False
    lost: frozenset[int] = frozenset()

    def __init__(self) -> None:
        """Nothing to connect to."""
        self.at = "starting"
        self.brief: Message = {}
        self.on_break: Callable[[], None] = lambda: None
        self.before_end: Callable[[], None] = lambda: None

    def is_broken(self, generation: int) -> bool:
        """No peer can be lost."""
        return False

    def next_generation(self, after: int, committed: int, deadline_s: float, *, admits: bool = False) -> Go:
        """The same one worker again."""
        return Go(after + 1, (self.worker,), committed, None)

    def await_break(self, generation: int, deadline_s: float) -> bool:
        """No peer can be lost."""
        return False

    def finish(self, generation: int, deadline_s: float) -> bool:
        """No other worker has anything left to do."""
        return True

    def post(self, news: Event | News) -> None:
        """There is no record."""

    def _nothing(self, *_: object) -> None:
        """There is no coordinator to tell."""

    torn = stuck = flush = heed = part = close = _nothing


class Channel:
    """The connection of one worker to the coordinator of its run."""

    def __init__(self, address: Address, worker: int, host: str, *, joins: bool = False) -> None:
        """Connect and start listening. `joins`: this worker comes in later, between two steps of the others."""
        self.worker = worker
        self.joining = joins
        """Whether this worker comes in while others train, and does not have their state yet."""
        self.newcomers = False
        """Whether others wait to come in."""
        self.name = f"worker {worker} on {host}"
        self.on_break: Callable[[], None] = lambda: None
        self.before_end: Callable[[], None] = lambda: None
        """What is left to do when the run ends early; see `part`."""
        self.stop_reason: str | None = None
        self.recorded = -1
        """The last step that the hub had on record when this generation began."""
        self._turn = threading.Condition()
        self._values: dict[str, str] = {}
        self._go: Go | None = None
        self._broken = -1
        self.lost: set[int] = set()
        """The workers that were lost so far."""
        self._farewell = False
        self._aborted = threading.Event()
        self._parting = threading.Lock()
        who = {"role": "worker", "number": worker, "host": host, "pid": os.getpid()}
        self._client = Client(address, who, self._hear, self._lost)
        self.brief = self._client.brief
        self.post, self.flush = self._client.post, self._client.flush
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

    # ------------------------------------------------------------- what the training thread calls

    def is_broken(self, generation: int) -> bool:
        """Whether a member of this generation was lost."""
        return self._broken >= generation

    def next_generation(self, after: int, committed: int, deadline_s: float, *, admits: bool = False) -> Go:
        """Say that we are ready, and wait until the hub announces a generation later than `after`.

        `admits`: those that wait may come in with it.
        """
        self.flush()
        self._client.send({"ready": {"committed": committed, "admits": admits}})
        self._wait(
            lambda: self._go is not None and self._go.generation > after, deadline_s, "the other workers to regroup"
        )
        assert self._go is not None
        return self._go

    def enter(self) -> Go:
        """Say that we want to come in, and wait for the generation with which we do.

        The others let us in after a step, which may take long. The wait ends with the run at the latest: this process
        ends when it does, or when the hub is lost.
        """
        self.flush()
        self._client.send({"ready": {"committed": 0, "admits": False}})
        with self._turn:
            self._turn.wait_for(lambda: self._go is not None and self.worker in self._go.members)
            assert self._go is not None
            return self._go

    def await_break(self, generation: int, deadline_s: float) -> bool:
        """Give the hub a moment to say which member was lost; False if none was."""
        with self._turn:
            return self._turn.wait_for(lambda: self._broken >= generation, deadline_s)

    def torn(self, generation: int) -> None:
        """Say that a collective failed though no member was lost: all shall regroup."""
        self._client.send({"torn": generation})

    def stuck(self, what: str, seconds: float) -> None:
        """Say that a wait for `what` reached its deadline; the hub knows who did not come."""
        self._client.send({"stuck": {"awaited": what, "seconds": seconds}})

    def put(self, key: str, value: str) -> None:
        """Publish a value to the peers of this generation."""
        self._client.send({"put": {key: value}})

    def get(self, key: str, generation: int, deadline_s: float) -> str | None:
        """A value that a peer published; None if the generation broke before it came."""
        if key not in self._values:
            self._client.send({"get": key})
            self._wait(
                lambda: key in self._values or self._broken >= generation, deadline_s, f"a peer's address ({key})"
            )
        return self._values.get(key)

    def finish(self, generation: int, deadline_s: float) -> bool:
        """Say that we have nothing left to agree on; True when all say so, False if a member was lost before that."""
        self.flush()
        self._client.send({"finish": True})
        self._wait(lambda: self._farewell or self._broken >= generation, deadline_s, "the other workers to finish")
        return self._farewell

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

    def withdraw(self, reason: str) -> None:
        """This worker came later, and cannot take part after all: the others go on without it."""
        self._farewell = True
        self._client.send({"withdrew": reason})
        self.close()

    def close(self) -> None:
        """Send what is left and hang up, once the coordinator has read it."""
        self._farewell = True
        self._client.close()

    # ------------------------------------------------------------- threads

    def _wait(self, happened: Callable[[], bool], deadline_s: float, what: str) -> None:
        with self._turn:
            if not self._turn.wait_for(happened, deadline_s):
                self.stuck(what, deadline_s)
                raise WaitedTooLong(f"worker {self.worker} waited {deadline_s:.0f} s for {what}")

    def _lost(self, how: str) -> None:
        if not self._farewell:
            _end(CoordinatorLost.code, f"cordee: worker {self.worker} {how} its launcher and ends")

    def _hear(self, message: Message) -> None:
        if "abort" in message:
            self._aborted.set()
            # On a thread of its own: the hub may have more to say while a file is being written.
            threading.Thread(target=self._give_up, name="cordee-parting", daemon=True).start()
        elif "evicted" in message and not self._farewell:
            _end(Evicted.code, f"cordee: worker {self.worker} was evicted: {message['evicted']}")
        elif "stop" in message:
            self.stop_reason = message["stop"]
        with self._turn:
            if "break" in message:
                self._broken = max(self._broken, int(message["break"]))
                self.lost |= {worker} if (worker := message.get("lost")) is not None else set()
                self._values.clear()
                self.on_break()
            elif "go" in message:
                self._values.clear()
                self.recorded = int(message["recorded"])
                self._go = Go.read(message["go"])
                self.newcomers = self.newcomers and not self._go.admits
            elif "newcomers" in message:
                self.newcomers = bool(message["newcomers"])
            elif "value" in message:
                key, value = message["value"]
                self._values[key] = value
            elif "farewell" in message:
                self._farewell = True
                if self.joining:  # the run is over, and nothing of it is ours
                    _end(0)
            self._turn.notify_all()

    def _give_up(self) -> None:
        self.part()
        self.flush()
        _end(WorkerFailed.code)


def _end(code: int, word: str = "") -> None:
    """End this process at once: its training thread may sit in a collective that never ends."""
    if word:
        sys.stderr.write(word + "\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
