"""What happened in a run, as a list: each incident with the steps that were committed by then."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Sequence

from cordee.watch.summary import Incident

MOST_OF_A_KIND = 100
"""Incidents of a kind that are listed; the others are counted."""
AROUND = 20
"""Steps on either side of one that say what is usual there."""


class Incidents:
    """Takes incidents as they come; the step of some is only known when the next one is committed."""

    def __init__(self) -> None:
        """Nothing has happened."""
        self._listed: list[Incident] = []
        self._undated: dict[int, float] = {}
        """Places of incidents whose step is not known: the first step committed after this moment comes after them."""
        self._during: dict[int, int] = {}
        """Losses of this start: from the place of the incident to that of the step in which it happened."""
        self.count: Counter[str] = Counter()

    def add(self, incident: Incident, undated: float | None = None) -> None:
        """One more; `undated` is the moment before which no committed step comes after it."""
        self.count[incident.kind] += 1
        if self.count[incident.kind] > MOST_OF_A_KIND:
            return
        if undated is not None:
            self._undated[len(self._listed)] = undated
        self._listed.append(incident)

    def regroup(self, moment: float) -> None:
        """The group that does the next step stands."""
        self._undated = {place: min(known, moment) for place, known in self._undated.items()}

    def commit(self, at: float, step: int, ms: float, place: int) -> None:
        """A step was committed at this time of day; `place` is its place among the lengths of all steps."""
        for number in [number for number, moment in self._undated.items() if moment < at]:
            del self._undated[number]
            if self._listed[number].kind == "failure":
                self._during[number] = place
                self._change(number, ms=ms)
            self._change(number, step=step - 1)

    def end_start(self, step: int, lengths: Sequence[float], first: int) -> None:
        """A start of the run is over after `step`; its steps have their lengths from place `first` on."""
        for number, place in self._during.items():
            around = (*lengths[max(first, place - AROUND) : place], *lengths[place + 1 : place + 1 + AROUND])
            self._change(number, usual_ms=statistics.median(around) if around else None)
        for number in self._undated:  # no step came after them
            self._change(number, step=step)
        self._during.clear()
        self._undated.clear()

    def listed(self) -> tuple[Incident, ...]:
        """All that are listed, in the order of time."""
        return tuple(sorted(self._listed, key=lambda incident: incident.time))

    @property
    def left_out(self) -> int:
        """How many are not listed."""
        return sum(self.count.values()) - len(self._listed)

    def _change(self, number: int, **fields: float | None) -> None:
        self._listed[number] = dataclasses.replace(self._listed[number], **fields)  # type: ignore[arg-type]
