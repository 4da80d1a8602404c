"""What happened in a run, as a list: each incident with the steps that were committed by then."""

from __future__ import annotations

import dataclasses
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
        self._undated: dict[int, float] = {}
        """Losses and new groups of this start: the first step committed after this moment comes after them."""
        self.count: Counter[str] = Counter()

    def add(self, incident: Incident) -> None:
        """One more."""
        self.count[incident.kind] += 1
        if self.count[incident.kind] > MOST_OF_A_KIND:
            return
        if incident.kind == "regroup":  # the group that does the next step stands
            self._undated = {number: min(known, incident.time) for number, known in self._undated.items()}
        if incident.kind in ("failure", "regroup"):
            # The step in which a worker was lost may have been done already: it is the next group that does one anew.
            self._undated[len(self._listed)] = math.inf if incident.kind == "failure" else incident.time
        self._listed.append(incident)

    def end_start(self, series: Series, first: int) -> None:
        """A start of the run is over; its steps have the places from `first` on in the series."""
        for number, moment in self._undated.items():
            incident, place = self._listed[number], bisect_right(series.committed, moment, first)
            if place == len(series.committed):  # no step came after it
                self._listed[number] = dataclasses.replace(incident, step=series.step)
                continue
            incident = dataclasses.replace(incident, step=series.steps[place] - 1)
            if incident.kind == "failure":
                lengths = series.lengths
                around = (*lengths[max(first, place - AROUND) : place], *lengths[place + 1 : place + 1 + AROUND])
                usual_ms = statistics.median(around) if around else None
                incident = dataclasses.replace(incident, ms=lengths[place], usual_ms=usual_ms)
            self._listed[number] = incident
        self._undated.clear()

    def listed(self) -> tuple[Incident, ...]:
        """All that are listed, in the order of time."""
        return tuple(sorted(self._listed, key=lambda incident: incident.time))

    @property
    def left_out(self) -> int:
        """How many are not listed."""
        return sum(self.count.values()) - len(self._listed)
