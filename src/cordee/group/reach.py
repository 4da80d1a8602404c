"""Whether the hosts of a run reach each other: a pair that does not is named before gloo waits for its deadline.

All workers reach the coordinator, or they would not be here. gloo connects every pair of them besides, at ports that
the system chooses, where a firewall or a missing route may be in the way.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cordee.core.errors import RendezvousError
from cordee.group.store import HubStore

REACH_S = 8.0
"""How long a connection may take; the system has sent its first packet four times by then."""
LOOKS = 10
"""A member that waits looks at the others after so many seconds, and again."""
SECOND_S = 0.9
"""Looks closer to each other than this count as one."""


@dataclass(frozen=True)
class Contact:
    """Where a worker listens, and what it is called."""

    name: str
    address: str
    port: int


def meet(store: HubStore, rank: int, size: int, interface: str, name: str) -> list[Contact]:
    """Where each worker listens; `RendezvousError` if we, the first of our host, cannot reach another host."""
    if ipaddress.ip_address(interface).is_loopback:
        return [Contact(name, interface, 0)] * size
    with socket.create_server((interface, 0), backlog=size) as listener:
        store.set(str(rank), json.dumps([name, interface, listener.getsockname()[1]]))
        places = [Contact(*json.loads(store.get(str(other)))) for other in range(size)]
        first = _first_of_hosts(places)
        others = other_hosts(places, interface)
        if first[interface] is places[rank] and (failed := unreachable(others)):
            place, reason = failed[0]
            raise RendezvousError(
                f"{name} cannot reach {place.name}, at {place.address}: {reason}. All hosts of a run must reach each "
                "other, not only the coordinator: check routes and firewalls between these two, for all TCP ports"
            )
        store.set(f"{rank} reached", " ")
        store.wait([f"{places.index(place)} reached" for place in first.values()])  # until then we must listen
    return places


def _first_of_hosts(places: Sequence[Contact]) -> dict[str, Contact]:
    """By address: the worker of the lowest rank there."""
    return {place.address: place for place in reversed(places)}


def other_hosts(places: Sequence[Contact], interface: str) -> list[Contact]:
    """The first worker of each host but our own."""
    return [place for place in _first_of_hosts(places).values() if place.address != interface]


def unreachable(places: Sequence[Contact], *, answering: bool = True) -> list[tuple[Contact, str]]:
    """Those to which no connection comes about, with the reason; not `answering`: a refusal proves that it is there."""
    failed: list[tuple[Contact, str]] = []

    def reach(place: Contact) -> None:
        try:
            socket.create_connection((place.address, place.port), REACH_S).close()
        except OSError as error:
            if answering or error.errno != errno.ECONNREFUSED:
                timed_out = isinstance(error, TimeoutError) and error.errno is None
                reason = f"no answer within {REACH_S:g} s" if timed_out else os.strerror(error.errno or 0)
                failed.append((place, reason))

    threads = [threading.Thread(target=reach, args=(place,), name="cordee-reach", daemon=True) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(REACH_S + 1)
    return sorted(failed, key=lambda found: places.index(found[0]))


class Lookout:
    """Looks after the other hosts while a member waits, and says which one is out of reach, once."""

    def __init__(self, places: Sequence[Contact], name: str, say: Callable[[str], None]) -> None:
        """`places` is what `meet` gave."""
        self._places, self._name, self._say = list(places), name, say
        self._looks = 0
        self._looked = 0.0

    def look(self) -> None:
        """Called at least once per second of a wait; nothing is waited for here."""
        if not self._places or time.monotonic() - self._looked < SECOND_S:
            return
        self._looked = time.monotonic()
        self._looks += 1
        if self._looks % LOOKS == 0:
            threading.Thread(target=self._try, name="cordee-lookout", daemon=True).start()

    def _try(self) -> None:
        for place, reason in unreachable(self._places, answering=False):
            if place in self._places:
                self._places.remove(place)
                self._say(
                    f"{self._name} cannot reach {place.name}, at {place.address}, any more: {reason}. "
                    "Check the network between these two: until it is back, all wait"
                )
