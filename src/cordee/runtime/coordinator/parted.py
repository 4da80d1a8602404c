"""Hosts that do not reach each other though both reach the coordinator: one of each such pair is evicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from cordee.core.events import WarningEvent
from cordee.group.messages import Unreached
from cordee.runtime.coordinator.known import Known
from cordee.runtime.coordinator.policy import put_out
from cordee.runtime.coordinator.server import Server

SETTLE_S = 1.5
"""How long after the first report others are awaited: a host that several do not reach is told from these by them."""
CHECK = "Check routes and firewalls between these two, for all TCP ports"


class Parted:
    """What workers report of each other, for some moments; called by the thread of the hub's server."""

    def __init__(
        self, server: Server, notify: Callable[[int, object], None], evict: Callable[[int, str], None], known: Known
    ) -> None:
        """`evict` is told the number of a node, and the reason; that of the coordinator's own, as `known`, stays."""
        self._server, self._notify, self._evict = server, notify, evict
        self._home = known.hosts.order.index(known.home) if known.hosts.order else 0
        self._reports: list[tuple[int, int, str]] = []

    def heard(self, worker: int, message: Unreached, nodes: Callable[[], Mapping[int, int]]) -> None:
        """A worker says that it does not reach another one; `nodes` gives the node numbers of all that live then."""
        if not self._reports:
            self._server.later(SETTLE_S, lambda: self._conclude(nodes()))
        self._reports.append((worker, message.worker, message.reason))

    def _conclude(self, nodes: Mapping[int, int]) -> None:
        """Evict hosts until no pair is left of those that are still here."""
        reports, self._reports = self._reports, []
        pairs: dict[tuple[int, int], tuple[int, int, str]] = {}
        for one, other, reason in reports:
            if not nodes:  # of another launcher, which would take the end of a worker for that of the run
                self._warn(one, other, reason, "The run waits, until --deadline")
            elif {one, other} <= nodes.keys() and nodes[one] != nodes[other]:
                first, second = sorted((one, other), key=lambda worker: nodes[worker])
                pairs.setdefault((nodes[first], nodes[second]), (first, second, reason))
        counts = Counter(nodes.values())
        while pairs:
            gone = put_out(pairs, counts, self._home)
            there: set[str] = set()
            for one, other, reason in [pairs.pop(pair) for pair in list(pairs) if gone in pair]:
                out, stays = map(self._server.name_of, (one, other) if nodes[one] == gone else (other, one))
                self._warn(one, other, reason, f"The host of {out} is evicted, and the others continue without it")
                there.add(f"{stays} ({reason})")
            self._evict(gone, f"it does not reach {' and '.join(sorted(there))}")

    def _warn(self, one: int, other: int, reason: str, follows: str) -> None:
        names = f"{self._server.name_of(one)} and {self._server.name_of(other)}"
        what = f"{names} do not reach each other, though both reach the coordinator ({reason})"
        self._notify(-1, WarningEvent(f"{what}. {follows}. {CHECK}"))
