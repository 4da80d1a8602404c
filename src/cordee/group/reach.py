"""Whether the hosts of a run reach each other: a pair that does not is named before gloo waits for its deadline.

All workers reach the coordinator, or they would not be here. gloo connects every pair of them besides, at ports that
the system chooses, where a firewall or a missing route may be in the way. Before the training that ends the run;
later the coordinator is told, which evicts one of the two hosts.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cordee.core.errors import RendezvousError
from cordee.group.membership import Membership

FIRST_S = 8.0
"""How long hosts may take to answer each other when the run begins; nothing is lost yet by waiting."""
REACH_S = 4.0
"""The same while a group waits: longer than the coordinator takes to notice a host that is silent altogether."""
ASK_S = 0.5
"""Until another packet is sent to a host that has not answered: on a busy link several in a row may be lost."""
LOOKS = 2
"""A member that waits looks at the others after so many seconds, and again."""
SECOND_S = 0.9
"""Looks closer to each other than this count as one."""


@dataclass(frozen=True)
class Contact:
    """Where a worker listens, and what it is called."""

    worker: int
    name: str
    address: str
    port: int


Report = Callable[[Contact, str], None]
"""Is told which worker of another host cannot be reached, and why."""


def meet(who: Membership, interface: str, name: str, report: Report) -> list[Contact]:
    """Where each worker of this generation listens, by rank; the first of each host tries to reach the other hosts.

    `RendezvousError` if it cannot, in the first generation. In a later one the coordinator is told by `report`, and
    this ends by `RuntimeError` when one of the two hosts is evicted.
    """
    if ipaddress.ip_address(interface).is_loopback:
        return [Contact(worker, name, interface, 0) for worker in who.members]
    store = who.store("reach")
    with socket.create_server((interface, 0), backlog=who.size) as listener:
        store.set(str(who.rank), json.dumps([who.worker, name, interface, listener.getsockname()[1]]))
        places = [Contact(*json.loads(store.get(str(other)))) for other in range(who.size)]
        first = _first_of_hosts(places)
        failed: list[tuple[Contact, str]] = []
        if first[interface] is places[who.rank]:
            failed = unreachable(other_hosts(places, interface), FIRST_S if who.generation == 1 else REACH_S)
        if failed and who.generation == 1:
            place, reason = failed[0]
            raise RendezvousError(
                f"{name} cannot reach {place.name}, at {place.address}: {reason}. All hosts of a run must reach each "
                "other, not only the coordinator: check routes and firewalls between these two, for all TCP ports"
            )
        for place, reason in failed:
            report(place, reason)
        if not failed:
            store.set(f"{who.rank} reached", " ")
        store.wait([f"{places.index(place)} reached" for place in first.values()])  # until then we must listen
    return places


def _first_of_hosts(places: Sequence[Contact]) -> dict[str, Contact]:
    """By address: the worker of the lowest rank there."""
    return {place.address: place for place in reversed(places)}


def other_hosts(places: Sequence[Contact], interface: str) -> list[Contact]:
    """The first worker of each host but our own."""
    return [place for place in _first_of_hosts(places).values() if place.address != interface]


def unreachable(places: Sequence[Contact], seconds: float, *, answering: bool = True) -> list[tuple[Contact, str]]:
    """Those to which no connection comes about, with the reason; not `answering`: a refusal proves that it is there."""
    failed: list[tuple[Contact, str]] = []

    def reach(place: Contact) -> None:
        if reason := why_unreachable(place.address, place.port, seconds, answering=answering):
            failed.append((place, reason))

    threads = [threading.Thread(target=reach, args=(place,), name="cordee-reach", daemon=True) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(failed, key=lambda found: places.index(found[0]))


def why_unreachable(address: str, port: int, seconds: float, *, answering: bool) -> str:
    """Why none of several attempts to connect comes about within so long; empty if one does."""
    began, asked, reason = time.monotonic(), 0, f"no answer within {seconds:g} s"
    with selectors.DefaultSelector() as waiting, contextlib.ExitStack() as ends:
        while True:
            passed, results = time.monotonic() - began, []
            if asked * ASK_S <= passed < seconds:
                asked += 1
                sock = ends.enter_context(socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET))
                sock.setblocking(False)
                if (result := sock.connect_ex((address, port))) == errno.EINPROGRESS:
                    waiting.register(sock, selectors.EVENT_WRITE, sock)
                else:
                    results.append(result)
            # Before the time is looked at: this process may have been stopped, and its answer has come.
            for key, _ in waiting.select(ASK_S / 2):
                waiting.unregister(key.fileobj)
                results.append(key.data.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            for result in results:
                if not result or result == errno.ECONNREFUSED:  # it is there
                    return os.strerror(result) if result and answering else ""
                reason = os.strerror(result)
            if passed >= seconds:
                return reason


class Lookout:
    """Looks after the other hosts while a member waits, and reports which one is out of reach, once."""

    def __init__(self, places: Sequence[Contact], report: Report) -> None:
        """`places` is what `meet` gave."""
        self._places, self._report = list(places), report
        self._looks = 0
        self._looked = 0.0
        self._trying = False

    def look(self) -> None:
        """Called at least once per second of a wait; nothing is waited for here."""
        if not self._places or self._trying or time.monotonic() - self._looked < SECOND_S:
            return
        self._looked = time.monotonic()
        self._looks += 1
        if self._looks % LOOKS == 0:
            self._trying = True
            threading.Thread(target=self._try, name="cordee-lookout", daemon=True).start()

    def _try(self) -> None:
        for place, reason in unreachable(self._places, REACH_S, answering=False):
            self._places.remove(place)
            self._report(place, reason)
        self._trying = False
