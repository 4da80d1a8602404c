"""A process's connection to the coordinator, for workers and for the launchers of other hosts.

Two threads: one listens, one sends heartbeats several times per second, and what has gathered for the record. Neither
ever waits for the thread that trains. The second also notices for how long its process did not run.

When the connection ends, the first looks for another coordinator for some time, if the one that was lost has said that
there may be one. It gets what this process waits for and what it has posted and may not be on record, once more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from cordee.core.errors import CordeeError, RendezvousError
from cordee.core.events import Event
from cordee.group import messages
from cordee.group.messages import Beat, Clock, Message, Posted, Who
from cordee.group.pauses import Pauses
from cordee.group.wire import Address, Connection, Refused, connect

BEAT_S = 0.5
"""How often workers and launchers say that they are there. Losses on one host are noticed without it, at once."""
STALL_S = 1.5
"""A beat that comes so late says that its own process did not run: that is not the others' silence."""
SILENT_S = 3.0
"""On another host a lost coordinator may look like silence: after so long its peers look for another one."""
END_SILENT_S = 10.0
"""The same where there will be no other one, as it is in a process that trains, and they end themselves."""
SEND_S = 0.1
"""How often what has gathered for the record is sent."""
CLOSE_S = 2.0
"""How long the coordinator may take to read the last messages."""
AGAIN_S = 0.02
"""Until another attempt to reach a coordinator."""
REACH_S = 2.0
"""How long one such attempt may take: a host that is gone does not say so."""
IN_GENERATION = (
    messages.Ready,
    messages.Finish,
    messages.Value,
    messages.Get,
    messages.Torn,
    messages.Unreached,
)
"""What a coordinator is asked or told in one generation; the next one answers all of it."""
PARTS = (messages.Take, messages.Done)
"""Of these only the last one waits for an answer."""
FOR_GOOD = (
    messages.Lose,
    messages.Leaving,
    messages.Woke,
    messages.Asked,
    messages.Filled,
    messages.Failed,
    messages.Saving,
    messages.Stuck,
)
"""What a coordinator has to know whenever it comes."""
Answer = Literal["refused", "silent", "there"]
"""What a place where a coordinator may be says to an attempt to connect: that no launcher listens there any more,
nothing, or that a launcher is there, without a coordinator."""
Found = Mapping[tuple[str, int], Answer]


def answer_of(error: CordeeError) -> Answer:
    """By why an attempt to connect failed."""
    if isinstance(error.__cause__, ConnectionRefusedError):
        return "refused"
    return "silent" if isinstance(error, RendezvousError) and isinstance(error.__cause__, OSError) else "there"


class Client:
    """One end of the wire; the other is the coordinator's."""

    def __init__(
        self,
        address: Address,
        who: Who,
        hear: Callable[[Message], None],
        lost: Callable[[str], None],
        back: Callable[[], Message | None] = lambda: None,
    ) -> None:
        """Connect. From `start` on a thread calls `hear` with each message, and `lost` with how the connection ended.

        `lost` is called once at most, and not after `close`. `back` gives what another coordinator is told first.
        """
        self._connection, welcome = connect(address, who)
        self.settings, self.run = welcome.settings, welcome.run
        self.addresses: list[Address] = []
        """Where a coordinator of this run may be; first where it was last."""
        self.stays: Callable[[float, Found], bool] = lambda seconds, found: True
        """Asked while another coordinator is looked for, so long after the loss, with what was found where it may be:
        whether to go on looking."""
        self._who, self._back, self._patience_s = who, back, welcome.patience_s
        self._is_member(welcome, address)
        self.at = "starting"
        """What this process is doing; sent with every beat."""
        self.clock_offset_s = 0.0
        """What to add to this host's clock to get the coordinator's."""
        self.pauses = Pauses()
        """For how long this process did not run so far."""
        self._hear, self._lost = hear, lost
        self._writing = threading.Lock()
        self._outbox: deque[Event] = deque()
        self._unheard: deque[Posted] = deque()
        """What was posted and may not have come through."""
        self._posted = 0
        self._waiting: list[Message] = []
        """What another coordinator is told again."""
        self._asked = 0.0
        self._best_round_trip = float("inf")
        # On this host a connection closes when its other end dies: silence means nothing there.
        limit_s = SILENT_S if welcome.patience_s else END_SILENT_S
        self._silence_s = limit_s if address.tls else float("inf")
        self._heard, self._echo = time.monotonic(), 0.0
        self._silent: list[Connection] = []
        """Connections to coordinators that said nothing any more."""
        self._closed = threading.Event()
        self._ended = threading.Lock()
        self._threads = [
            threading.Thread(target=loop, name=f"cordee-{loop.__name__.strip('_')}", daemon=True)
            for loop in (self._listen, self._beat)
        ]

    @property
    def number(self) -> int:
        """This process's, as the coordinator has it."""
        return self._who.number

    def start(self) -> None:
        """Listen and beat."""
        for thread in self._threads:
            thread.start()

    def post(self, event: Event) -> None:
        """Send something for the record, some time soon."""
        self._outbox.append(event)

    def send(self, *words: Message) -> None:
        """Send now: what `post` has gathered, and these after it."""
        with self._writing:
            due: list[Message] = []
            if events := [self._outbox.popleft() for _ in range(len(self._outbox))]:
                self._posted += 1
                due.append(posted := Posted(events, self._posted))
                if self._patience_s:
                    self._unheard.append(posted)
            for message in words:
                self._remember(message)
            with contextlib.suppress(OSError):  # the listener sees the end of the connection and acts on it
                for message in (*due, *words):
                    self._connection.send(message)

    def expect_end(self) -> None:
        """The coordinator is about to hang up: no other one is looked for."""
        self._patience_s = 0.0

    def forget(self, kinds: tuple[type[Message], ...]) -> None:
        """These were answered, or are of no use any more: no other coordinator is told of them."""
        with self._writing:
            self._waiting = [one for one in self._waiting if not isinstance(one, kinds)]

    def close(self) -> None:
        """Send what is left and hang up, once the coordinator has read it.

        Closing at once could lose it: the answer to a beat that is not read any more resets the connection.
        """
        self.send()
        if self._unheard and not self._closed.is_set():
            self.send(Beat(self.at, self._echo))  # the answer says how much has come through
            deadline = time.monotonic() + CLOSE_S
            while self._unheard and not self._closed.is_set() and time.monotonic() < deadline:
                time.sleep(0.001)
        self._closed.set()
        if self._connection in self._silent:  # that coordinator would take it for the end of this process
            return
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
            self.send(Beat(self.at, self._echo))
            if now - self._heard > self._silence_s:
                if self._patience_s:
                    self._silent.append(self._connection)
                    self._connection.give_up()  # the listener looks for another one
                else:
                    self._end("hears nothing from")

    def _listen(self) -> None:
        while True:
            while (message := self._connection.receive()) is not None:
                self._heard = time.monotonic()
                if isinstance(message, Clock):
                    self._set_clock(message.seconds)
                    self._echo = message.sent
                    with self._writing:
                        while self._unheard and self._unheard[0].number <= message.heard:
                            self._unheard.popleft()
                else:
                    self._hear(message)
            if not self._return():
                break
        self._end("lost")

    def _return(self) -> bool:
        """Find the coordinator that was started in the place of the one that was lost; False if none came in time."""
        began, found = time.monotonic(), dict[tuple[str, int], Answer]()
        while not self._closed.is_set() and (left := began + self._patience_s - time.monotonic()) > 0:
            for address in list(self.addresses):
                try:
                    connection, welcome = connect(address, self._who, min(left, REACH_S))
                except Refused as refusal:
                    self._hear(messages.Evicted(refusal.reason))
                    return False
                except CordeeError as error:
                    found[address.host, address.port] = answer_of(error)
                    if not self.stays(time.monotonic() - began, found):
                        return False
                    continue
                if welcome.term < self._who.term:  # one that does not know yet that there is another
                    connection.close()
                    continue
                self._take(connection, welcome, address)
                return True
            self._closed.wait(AGAIN_S)
        return False

    def _take(self, connection: Connection, welcome: messages.Welcome, address: Address) -> None:
        """Go on with this coordinator, which is told all that the former one may have known."""
        with self._writing:
            # A coordinator that is only out of reach must see silence, as a hung-up peer has ended for it.
            if self._connection not in self._silent:
                self._connection.close()
            self._connection = connection
            self._is_member(welcome, address)
            self._heard, self._best_round_trip, self._echo = time.monotonic(), float("inf"), 0.0
            back = self._back()
            with contextlib.suppress(OSError):  # it is lost too: the listener looks for the next one
                for message in ([] if back is None else [back]) + [*self._unheard] + self._waiting:
                    connection.send(message)

    def _is_member(self, welcome: messages.Welcome, address: Address) -> None:
        """From here on this is who we are for any coordinator, and where it may be."""
        others = [dataclasses.replace(address, host=host, port=port) for host, port in welcome.others]
        self.addresses = [address, *others]
        number = welcome.number if self._who.role == "node" else self._who.number
        self._who = msgspec.structs.replace(self._who, term=welcome.term, number=number)

    def _remember(self, message: Message) -> None:
        if isinstance(message, PARTS):
            self._waiting = [one for one in self._waiting if not isinstance(one, PARTS)]
        if self._patience_s and isinstance(message, (*IN_GENERATION, *PARTS, *FOR_GOOD)):
            self._waiting.append(message)

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
