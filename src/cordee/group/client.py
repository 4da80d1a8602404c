"""A process's connection to the coordinator, for workers and for the launchers of other hosts.

Two threads: one listens, one sends heartbeats several times per second, and what has gathered for the record. Neither
ever waits for the thread that trains. The second also notices for how long its process did not run.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable

from cordee.core.events import Event
from cordee.group.messages import Beat, Clock, Message, Posted, Who
from cordee.group.pauses import Pauses
from cordee.group.wire import Address, connect

BEAT_S = 0.5
"""How often workers and launchers say that they are there. Losses on one host are noticed without it, at once."""
STALL_S = 1.5
"""A beat that comes so late says that its own process did not run: that is not the others' silence."""
HUB_SILENCE_S = 10.0
"""On another host a lost coordinator may look like silence: a worker that hears nothing for so long ends itself."""
SEND_S = 0.1
"""How often what has gathered for the record is sent."""
CLOSE_S = 2.0
"""How long the coordinator may take to read the last messages."""


class Client:
    """One end of the wire; the other is the coordinator's."""

    def __init__(
        self, address: Address, who: Who, hear: Callable[[Message], None], lost: Callable[[str], None]
    ) -> None:
        """Connect. From `start` on a thread calls `hear` with each message, and `lost` with how the connection ended.

        `lost` is called once at most, and not after `close`.
        """
        self._connection, welcome = connect(address, who)
        self.settings, self.run = welcome.settings, welcome.run
        self.at = "starting"
        """What this process is doing; sent with every beat."""
        self.clock_offset_s = 0.0
        """What to add to this host's clock to get the coordinator's."""
        self.pauses = Pauses()
        """For how long this process did not run so far."""
        self._hear, self._lost = hear, lost
        self._writing = threading.Lock()
        self._outbox: deque[Event] = deque()
        self._asked = 0.0
        self._best_round_trip = float("inf")
        # On this host a connection closes when its other end dies: silence means nothing there.
        self._silence_s = HUB_SILENCE_S if address.tls else float("inf")
        self._heard = time.monotonic()
        self._closed = threading.Event()
        self._ended = threading.Lock()
        self._threads = [
            threading.Thread(target=loop, name=f"cordee-{loop.__name__.strip('_')}", daemon=True)
            for loop in (self._listen, self._beat)
        ]

    def start(self) -> None:
        """Listen and beat."""
        for thread in self._threads:
            thread.start()

    def post(self, event: Event) -> None:
        """Send something for the record, some time soon."""
        self._outbox.append(event)

    def send(self, *messages: Message) -> None:
        """Send now: what `post` has gathered, and these after it."""
        with self._writing, contextlib.suppress(OSError):  # the listener sees the end of the connection and acts on it
            if events := [self._outbox.popleft() for _ in range(len(self._outbox))]:
                self._connection.send(Posted(events))
            for message in messages:
                self._connection.send(message)

    def close(self) -> None:
        """Send what is left and hang up, once the coordinator has read it.

        Closing at once could lose it: the answer to a beat that is not read any more resets the connection.
        """
        self._closed.set()
        self.send()
        self._connection.close_writing()
        for thread in self._threads:
            thread.join(CLOSE_S)
        self._connection.close()

    def _beat(self) -> None:
        next_send, next_beat, looked = 0.0, 0.0, time.monotonic()
        while not self.pauses.wait(self._closed):
            now = time.monotonic()
            if now < next_send:
                continue
            next_send = now + SEND_S
            if self._outbox:
                self.send()
            if now < next_beat:
                continue
            if now - looked > STALL_S:  # this process did not run
                self._heard = now
            next_beat, looked = now + BEAT_S, now
            self._asked = time.time()
            self.send(Beat(self.at))
            if now - self._heard > self._silence_s:
                self._end("hears nothing from")

    def _listen(self) -> None:
        while (message := self._connection.receive()) is not None:
            self._heard = time.monotonic()
            if isinstance(message, Clock):
                self._set_clock(message.seconds)
            else:
                self._hear(message)
        self._end("lost")

    def _end(self, how: str) -> None:
        """The connection is of no use any more; of two threads that find out, one says so."""
        if not self._closed.is_set() and self._ended.acquire(blocking=False):
            self._closed.set()
            self._lost(how)

    def _set_clock(self, hub_time: float) -> None:
        now = time.time()
        if now - self._asked <= self._best_round_trip:
            self._best_round_trip = now - self._asked
            self.clock_offset_s = hub_time - (now + self._asked) / 2
