"""One delivery at one host: what comes from the host before it, and what goes on to those behind it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from cordee.feed.exchange import messages as said
from cordee.feed.exchange.access import Access
from cordee.feed.exchange.forward import Forward
from cordee.feed.exchange.landing import Landing
from cordee.feed.exchange.listing import BLOCK, Entry
from cordee.feed.exchange.messages import Offer, Outcome
from cordee.group.bulk import Gone, Link

LINGER_S = 2.0
"""How long an end that has failed reads on, so that the other one hears of it before the connection is reset."""


class Delivery:
    """Files of one offer, from the first byte to the report."""

    def __init__(
        self, folder: Path, offer: Offer, entries: list[Entry], access: Access, tell: Callable[[str], None]
    ) -> None:
        """They land below `folder`; what is behind in the route is served from the first byte on."""
        self.offer = offer
        self.landing = Landing(folder, offer.name, entries)
        self.settled = False
        """Nothing more is written, though it may still be told to others: a new delivery may begin."""
        self.over = threading.Event()
        """It has ended: see `outcomes`."""
        self.outcomes: list[Outcome] = []
        """Of this host, then of those behind it."""
        self.own = Outcome(offer.host, False)
        self._silence_s = access.silence_s
        self._beat_s = min(1.0, access.silence_s / 4)
        self._began = time.monotonic()
        self._had: int | None = None
        self._received = 0
        self._link: Link | None = None
        self._turn = threading.Lock()
        """Of the thread that writes."""
        self._state = threading.Lock()
        self._lost_at = 0.0
        self._reason = ""
        self._forward = Forward(access, self.landing, msgspec.structs.replace(offer, first=False), tell)
        self._behind: list[Outcome] = []
        self._forwarding = threading.Thread(target=self._pass_on, name="cordee-forward", daemon=True)
        self._forwarding.start()

    @property
    def orphaned(self) -> bool:
        """Whether no peer sends at the moment."""
        with self._state:
            return self._link is None

    @property
    def complete(self) -> bool:
        """Whether all files are there."""
        return self._had is not None and all(self.landing.whole)

    def serve(self, link: Link) -> None:
        """Take what this link brings, in place of the one before it, if any."""
        with self._state:
            before, self._link = self._link, link
        if before is not None:
            before.stop_receiving()
        try:
            with self._turn:
                self._receive(link)
        except ValueError as error:
            self._refuse(link, str(error))
        except ConnectionError as error:
            self._lose(link, str(error))
        except OSError as error:  # of the disk
            named = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
            self._refuse(link, f"it cannot be written there: {named}")

    def watch(self) -> None:
        """Called now and then: gives up when no peer has sent for too long."""
        with self._state:
            waited = time.monotonic() - self._lost_at if self._link is None and self._lost_at else 0.0
        if waited > 2 * self._silence_s + 10:
            self.fail(f"{self._reason}, and no other went on in its place")

    def fail(self, reason: str, *, final: bool = True) -> None:
        """End it; what has come stays, and another delivery goes on from there. `final`: also for those behind."""
        self.settled = True
        self.landing.stop(reason, final=final)
        self._conclude(Outcome(self.offer.host, self.complete, reason="" if self.complete else reason[:1000]))

    # ------------------------------------------------------------- within

    def _receive(self, link: Link) -> None:
        beaten = time.monotonic()

        def beat() -> None:
            nonlocal beaten
            if self._link is not link:
                raise Gone("another host sends this now")
            if time.monotonic() - beaten >= self._beat_s:
                beaten = time.monotonic()
                link.send(said.Alive())

        if self._had is None:
            self._had = self.landing.survey(beat)
        lacking = [(at, size) for at, size in enumerate(self.landing.sizes) if not self.landing.whole[at]]
        for start in range(0, max(1, len(lacking)), said.BATCH):
            link.send(said.Lacks(lacking[start : start + said.BATCH], more=start + said.BATCH < len(lacking)))
        buffer = memoryview(bytearray(BLOCK))
        while True:
            message = link.receive(said.decode)
            if self._link is not link:
                self._leave_to_another(link)
                return
            if isinstance(message, said.Piece):
                self._take(link, message, buffer)
            elif isinstance(message, said.Failed):
                self.fail(message.reason)
                return
            elif isinstance(message, said.Finished):
                break
            elif not isinstance(message, said.Alive):
                raise ValueError("a message came that does not belong here")
        self.landing.finish_empty()
        if not self.complete:
            raise ValueError("the sender says that it has sent all, but files are not whole")
        while self._forwarding.is_alive():
            self._forwarding.join(self._beat_s)
            beat()
        self._report(link)

    def _take(self, link: Link, piece: said.Piece, buffer: memoryview) -> None:
        if piece.file >= len(self.landing.entries):
            raise ValueError(f"a piece of file {piece.file} came, of {len(self.landing.entries)}")
        data = buffer[: piece.size]
        link.receive_into([data])
        self.landing.write(piece.file, piece.offset, data)
        self._received += piece.size

    def _report(self, link: Link) -> None:
        own = self._measured(Outcome(self.offer.host, True))
        self.settled = True
        link.send(said.Report([own, *self._behind]))
        self._conclude(own)

    def _measured(self, outcome: Outcome) -> Outcome:
        return msgspec.structs.replace(
            outcome,
            received=self._received,
            had=self._had or 0,
            sent=self._forward.sent,
            seconds=round(time.monotonic() - self._began, 3),
        )

    def _conclude(self, own: Outcome) -> None:
        self._forwarding.join()  # what is here is still passed on; its waits have deadlines
        with self._state:
            if self.over.is_set():
                return
            self.own = self._measured(own)
            self.outcomes = [self.own, *self._behind]
            self.over.set()

    def _pass_on(self) -> None:
        self._behind = self._forward.run()

    def _leave_to_another(self, link: Link) -> None:
        link.send(said.Failed("another host sends this now", replaced=True))
        linger(link)

    def _refuse(self, link: Link, reason: str) -> None:
        """End it because of what came, or could not be written; the host before this one goes on without it."""
        self.settled = True
        with contextlib.suppress(OSError):
            link.send(said.Failed(reason[:1000]))
            linger(link)
        with self._state:
            self._link = None
        self.fail(reason, final=False)

    def _lose(self, link: Link, reason: str) -> None:
        with self._state:
            if self._link is not link:
                lost = False
            else:
                self._link, self._lost_at, lost = None, time.monotonic(), True
                self._reason = f"the connection to the host before this one was lost ({reason})"
        if not lost:
            self._leave_to_another(link)
        elif self.offer.first:  # no other sender goes on
            self.fail(f"the sender was lost ({reason})")


def linger(link: Link) -> None:
    """Read what still comes, for a moment, until the other end hangs up."""
    ends, buffer = time.monotonic() + LINGER_S, memoryview(bytearray(1 << 16))
    with contextlib.suppress(Gone):
        while time.monotonic() < ends:
            link.receive_into([buffer])
