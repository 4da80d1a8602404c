"""What happened in a run, as a list: each incident with the steps that were committed by then."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections import Counter

from cordee.watch.series import Series
from cordee.watch.summary import Incident

MOST_OF_A_KIND = 100
"""Incidents of a kind that are listed; the others are counted."""
AROUND = 20
"""Steps on either side of one that say what is usual there."""


class Incidents:
    """Takes incidents as they come; the step of a loss is only known at the end of its start."""

    def __init__(self) -> None:
        """Nothing has happened."""
        self._listed: list[Incident] = []
        self._undated: list[tuple[Incident, float]] = []
        """Losses and new groups of this start: the first step committed after this moment comes after them."""
        self.count: Counter[str] = Counter()

    def add(self, incident: Incident) -> None:
        """One more."""
        self.count[incident.kind] += 1
        if self.count[incident.kind] > MOST_OF_A_KIND:
            return
        if incident.kind == "regroup":  # the group that does the next step stands
            self._undated = [(one, min(known, incident.time)) for one, known in self._undated]
        if incident.kind in ("failure", "regroup"):
            # The step in which a worker was lost may have been done already: it is the next group that does one anew.
            self._undated.append((incident, math.inf if incident.kind == "failure" else incident.time))
        self._listed.append(incident)

    def end_start(self, series: Series, first: int) -> None:
        """A start of the run is over; its steps have the places from `first` on in the series."""
        for incident, moment in self._undated:
            place = bisect_right(series.committed, moment, first)
            if place == len(series.committed):  # no step came after it
                incident.step = series.step
                continue
            incident.step = series.steps[place] - 1
            if incident.kind == "failure":
                lengths = series.lengths
                around = (*lengths[max(first, place - AROUND) : place], *lengths[place + 1 : place + 1 + AROUND])
                incident.ms, incident.usual_ms = lengths[place], statistics.median(around) if around else None
        self._undated.clear()

    def listed(self) -> tuple[Incident, ...]:
        """All that are listed, in the order of time."""
        return tuple(sorted(self._listed, key=lambda incident: incident.time))

    @property
    def left_out(self) -> int:
        """How many are not listed."""
        return sum(self.count.values()) - len(self._listed)
