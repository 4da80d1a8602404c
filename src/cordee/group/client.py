"""A process's connection to the coordinator, for workers and for the launchers of other hosts.

Two threads: one listens, one sends heartbeats several times per second, and what has gathered for the record. Neither
ever waits for the thread that trains.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from cordee.core.events import Event
from cordee.group.messages import News
from cordee.group.protocol import BEAT_S, HUB_SILENCE_S, STALL_S
from cordee.group.wire import Address, Message, connect

SEND_S = 0.1
"""How often what has gathered for the record is sent."""
CLOSE_S = 2.0
"""How long the coordinator may take to read the last messages."""


class Client:
    """One end of the wire; the other is the coordinator's."""

    def __init__(
        self,
        address: Address,
        who: Mapping[str, Any],
        hear: Callable[[Message], None],
        lost: Callable[[str], None],
    ) -> None:
        """Connect. From `start` on a thread calls `hear` with each message, and `lost` with how the connection ended.

        `lost` is called once at most, and not after `close`.
        """
        self._connection, welcome = connect(address, who)
        self.brief: Message = welcome.get("brief", {})
        """What the coordinator tells all peers at the start."""
        self.at = "starting"
        """What this process is doing; sent with every beat."""
        self.clock_offset_s = 0.0
        """What to add to this host's clock to get the coordinator's."""
        self._hear, self._lost = hear, lost
        self._writing = threading.Lock()
        self._outbox: deque[Message] = deque()
        self._asked = 0.0
        self._best_round_trip = float("inf")
        self._silence = Silence(HUB_SILENCE_S if address.tls else None)
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

    def post(self, news: Event | News) -> None:
        """Send something for the record or for the launcher, some time soon."""
        self._outbox.append({str(news.__struct_config__.tag): news})

    def flush(self) -> None:
        """Send now what `post` has gathered."""
        with self._writing:  # held throughout: what is sent afterwards must not overtake it
            said = [self._outbox.popleft() for _ in range(len(self._outbox))]
            if said:
                self._write({"said": said})

    def send(self, message: Message) -> None:
        """Send a message now."""
        with self._writing:
            self._write(message)

    def close(self) -> None:
        """Send what is left and hang up, once the coordinator has read it.

        Closing at once could lose it: the answer to a beat that is not read any more resets the connection.
        """
        self._closed.set()
        self.flush()
        self._connection.close_writing()
        for thread in self._threads:
            thread.join(CLOSE_S)
        self._connection.close()

    def _write(self, message: Message) -> None:
        # Should it fail, the listener sees the end of the connection and acts on it.
        with contextlib.suppress(OSError):
            self._connection.send(message)

    def _beat(self) -> None:
        next_beat = 0.0
        while not self._closed.wait(SEND_S):
            if self._outbox:
                self.flush()
            if time.monotonic() < next_beat:
                continue
            next_beat = time.monotonic() + BEAT_S
            self._asked = time.time()
            self.send({"beat": self.at})
            if self._silence.too_long():
                self._end("hears nothing from")

    def _listen(self) -> None:
        while (message := self._connection.receive()) is not None:
            self._silence.heard()
            if "beat" in message:
                self._set_clock(float(message["beat"]))
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


class Silence:
    """How long the other end was silent, not counting the time in which this process itself did not run."""

    def __init__(self, limit_s: float | None) -> None:
        """None: a connection of this host, which closes when its other end dies; silence means nothing there."""
        self._limit_s = limit_s
        self._heard = self._looked = time.monotonic()

    def heard(self) -> None:
        """Something came."""
        self._heard = time.monotonic()

    def too_long(self) -> bool:
        """Asked with every beat."""
        now = time.monotonic()
        if now - self._looked > STALL_S:
            self._heard = now
        self._looked = now
        return self._limit_s is not None and now - self._heard > self._limit_s
