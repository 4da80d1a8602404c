"""Where the bytes of a run went, from its events: servers, links, staleness, and what sync=auto decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cordee.core.events import DecisionEvent, FeedEvent, LinksEvent, PushesEvent, StartEvent, TrafficEvent
from cordee.core.feedevents import add_up
from cordee.watch.summary import Decision, Traffic

MOST_DECISIONS = 200
"""Decisions that are kept; of more, those that change nothing are thinned out first."""
MOST_STALE = 40
"""Larger stalenesses are counted as this one."""


class Carried:
    """Takes the events of a run, one after the other; times are given in seconds of running."""

    def __init__(self) -> None:
        """Nothing was sent yet."""
        self._servers: dict[tuple[int, int], TrafficEvent] = {}
        """By start and number, what each said last."""
        self._fed: dict[tuple[int, int], FeedEvent] = {}
        """By start and worker, likewise."""
        self._start = 0
        self._links: tuple[tuple[str, str, float, float], ...] = ()
        self._stale: Counter[int] = Counter()
        self._decisions: list[Decision] = []
        self._all_decisions = 0
        self._is_open = False
        """Whether the last decision waits for its measurement."""

    def on_start(self, event: StartEvent, seconds: float) -> None:
        """Other processes: what comes next measures no decision of those before."""
        self._start += 1
        self._is_open = False

    def on_traffic(self, event: TrafficEvent, seconds: float) -> None:
        """What a parameter server has sent so far."""
        self._servers[self._start, event.server] = event

    def on_feed(self, event: FeedEvent, seconds: float) -> None:
        """Where the samples of a worker came from so far."""
        self._fed[self._start, event.worker] = event

    def on_links(self, event: LinksEvent, seconds: float) -> None:
        """How fast the links between hosts are."""
        self._links = tuple(event.links)

    def on_pushes(self, event: PushesEvent, seconds: float) -> None:
        """What a worker pushed in a window."""
        self._stale.update(min(stale, MOST_STALE) for *_, stale in event.pushes)

    def on_decision(self, event: DecisionEvent, seconds: float) -> None:
        """It measured what the one before had forecast."""
        if self._is_open:
            self._decisions[-1] = replace(self._decisions[-1], measured_ms=event.measured_ms)
        self._decisions.append(
            Decision(
                step=event.step,
                seconds=seconds,
                before=event.before,
                choice=event.choice,
                reason=event.reason,
                compute_ms=event.compute_ms,
                link_mbit=event.link_mbit,
                forecast_ms=event.forecast_ms.get(event.choice),
            )
        )
        self._is_open = True
        self._all_decisions += 1
        if len(self._decisions) > MOST_DECISIONS:
            self._thin()

    def _thin(self) -> None:
        """Drop every second one that changed nothing; if all changed something, every second one. The last stays."""
        last = self._decisions.pop()
        kept = [one for place, one in enumerate(self._decisions) if place % 2 == 0 or one.before != one.choice]
        self._decisions = [*(kept if len(kept) < MOST_DECISIONS else kept[::2]), last]

    def summary(self) -> Traffic:
        """All of it."""
        stale = range(max(self._stale, default=-1) + 1)
        return Traffic(
            servers=self._by_server(),
            feed={f"{worker}": add_up(self._fed_to(worker)) for worker in sorted({one for _, one in self._fed})},
            fed=add_up(self._fed.values()),
            links=self._links,
            staleness=tuple(self._stale[one] for one in stale),
            decisions=tuple(self._decisions),
            left_out=self._all_decisions - len(self._decisions),
        )

    def _fed_to(self, worker: int) -> list[FeedEvent]:
        """What the processes of this number, one per start, said last."""
        return [event for (_, one), event in self._fed.items() if one == worker]

    def _by_server(self) -> Mapping[str, Mapping[str, Any]]:
        """A server of a later start is another process: what both sent is added up."""
        found: dict[str, dict[str, Any]] = {}
        for (_, number), event in sorted(self._servers.items()):
            server = found.setdefault(str(number), {"host": event.host, "bytes_sent": 0, "bytes_near": 0})
            server["host"] = event.host
            server["bytes_sent"] += event.bytes_sent
            server["bytes_near"] += event.bytes_near
        return found
