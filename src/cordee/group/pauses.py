"""For how long a process did not run: it was stopped (SIGSTOP), frozen, or suspended with its machine.

A thread that sleeps again and again wakes up late after that. It is also late while another thread of its process
keeps the interpreter to itself, which takes processor time: then it is no pause.
"""

from __future__ import annotations

import threading
import time

SLEEP_S = 0.025
"""What a pause is measured by: it is found to be shorter by half of this, as a mean. 40 times a second cost 0.1 %."""
LEAST_S = 0.015
"""So late a thread may be on a busy machine."""


class Pauses:
    """Adds up the pauses that a thread sleeps through."""

    def __init__(self) -> None:
        """None so far."""
        self.total_s = 0.0
        self._usual_s = 0.0
        """Processor time of this process during the last sleep that ended in time."""

    def wait(self, event: threading.Event) -> bool:
        """Sleep a moment, or until the event is set; whether it is."""
        began, ran = time.monotonic(), time.process_time()
        is_set = event.wait(SLEEP_S)
        self.slept(time.monotonic() - began - SLEEP_S, time.process_time() - ran)
        return is_set

    def slept(self, late_s: float, ran_s: float) -> None:
        """A sleep ended so late, and all threads together ran for so long meanwhile."""
        if late_s < LEAST_S:
            self._usual_s = ran_s
        elif ran_s - self._usual_s < late_s / 2:
            self.total_s += late_s
