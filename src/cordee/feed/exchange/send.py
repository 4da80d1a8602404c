"""Sends a folder or a file to the local disks of other hosts: `cordee data send`."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cordee.core.errors import UsageError
from cordee.core.words import amount
from cordee.feed.exchange.access import Access, split_place
from cordee.feed.exchange.forward import Folder, Forward
from cordee.feed.exchange.listing import entries_of
from cordee.feed.exchange.messages import MOST_HOSTS, Offer, Outcome
from cordee.feed.exchange.probe import choose, forecast, measure

TELL_S = 2.0
"""Between two lines that say how far it is."""
WAYS = ("auto", "broadcast", "chain")


@dataclass(frozen=True)
class Sent:
    """How it went."""

    how: str
    """`broadcast` or `chain`."""
    files: int
    """How many there are."""
    size: int
    """Bytes of all files."""
    seconds: float
    """From the first byte until the last host has told what became of it."""
    outcomes: tuple[Outcome, ...]
    """Of each host, in the order in which they were named."""
    sent: int
    """Bytes of files that this host has sent."""
    forecasts: Mapping[str, float]
    """By way: the seconds that were expected, if every host lacks all; empty where nothing was measured."""

    @property
    def complete(self) -> bool:
        """Whether all hosts have all of it."""
        return all(one.complete for one in self.outcomes)


def send(
    path: str | Path,
    to: Sequence[str],
    *,
    how: str = "auto",
    access: Access,
    name: str | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Sent:
    """Send a folder, a store or a file to the hosts that listen at `to`; each gets only what it lacks.

    `broadcast`: this host sends to each. `chain`: each passes on to the next what it gets, while it gets it. `auto`
    measures the links first and takes what is expected to be faster. A host that is lost is left out: see `outcomes`.
    """
    if how not in WAYS:
        raise UsageError(f"how={how}: expected one of {', '.join(WAYS)}")
    _check_hosts(to)
    path = Path(path).expanduser().absolute()
    entries = entries_of(path, tell)
    size = sum(entry.size for entry in entries)
    folder = "" if path.is_file() else path.name
    forecasts: dict[str, float] = {}
    if how == "auto":
        forecasts = forecast(size, measure(access, to)) if len(to) > 1 else {}
        how = choose(forecasts)
    holding = Folder(path, entries)
    offer = Offer(secrets.token_hex(16), folder if name is None else name, to[0], list(to), len(entries), True)
    routes = [[host] for host in to] if how == "broadcast" else [list(to)]
    forwards = [Forward(access, holding, msgspec.structs.replace(offer, route=route), tell) for route in routes]
    began = time.monotonic()
    found = {one.host: one for one in _run(forwards, size, tell)}
    seconds = time.monotonic() - began
    outcomes = tuple(found.get(host) or Outcome(host, False, reason="it did not answer") for host in to)
    return Sent(how, len(entries), size, seconds, outcomes, sum(one.sent for one in forwards), forecasts)


def _run(forwards: Sequence[Forward], size: int, tell: Callable[[str], None]) -> list[Outcome]:
    """All at once; every wait within has a deadline."""
    outcomes: list[Outcome] = []
    threads = [
        threading.Thread(target=lambda one=one: outcomes.extend(one.run()), name="cordee-send", daemon=True)
        for one in forwards
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(TELL_S)
            if thread.is_alive():
                sent = sum(one.sent for one in forwards)
                tell(f"sent {amount(sent)} of {amount(len(forwards) * size)}, less what the hosts have already")
    return outcomes


def _check_hosts(to: Sequence[str]) -> None:
    if not to:
        raise UsageError("no host was named: expected HOST:PORT, one or several with commas between them")
    if len(to) > MOST_HOSTS:
        raise UsageError(f"{len(to)} hosts were named, where at most {MOST_HOSTS} are possible")
    for one in to:
        split_place(one)
        if list(to).count(one) > 1:
            raise UsageError(f"{one} is named twice: name each host once")
