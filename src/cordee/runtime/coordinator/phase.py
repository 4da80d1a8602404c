"""How far a run has come, as one frozen value, and all of its transitions: what happens, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cordee.core import interrupts
from cordee.core.errors import CordeeError, Interrupted
from cordee.core.events import Event, JobEvent, StepEvent


@dataclass(frozen=True)
class Phase:
    """It starts, trains, perhaps is asked to stop after a step, and is over: in good order, or by an error."""

    begun: bool = False
    """Whether the training is known to have begun."""
    steps: int = 0
    """The last step that is on record; 0: none of this start."""
    stopping: bool = False
    """Whether all workers were asked to end after their step."""
    signals: int = 0
    """How many came to this process."""
    left: int = 0
    """Workers that were left after the last loss."""
    finished: bool = False
    """Whether all workers have ended in good order."""
    error: CordeeError | None = None
    """What ends the run."""

    @property
    def over(self) -> bool:
        """Whether nothing is waited for but the end of the workers."""
        return self.finished or self.error is not None

    @property
    def trains(self) -> bool:
        """Whether the training has begun, and is not about to end: workers may come and leave."""
        return self.begun and not (self.stopping or self.over)

    def posted(self, event: Event) -> Phase:
        """A worker had something for the record."""
        steps = event.step if isinstance(event, StepEvent) else self.steps
        return replace(self, begun=self.begun or isinstance(event, StepEvent | JobEvent), steps=steps)

    def posted_late(self, event: Event) -> Phase:
        """The same when the run is over: that it had begun was not known when it was ended."""
        return replace(self, steps=event.step) if isinstance(event, StepEvent) else self

    def fail(self, error: CordeeError | None) -> Phase:
        """Something happened that may end the run; what ended it first counts."""
        return replace(self, error=self.error or error)

    def finish(self) -> Phase:
        """All workers have ended in good order."""
        return replace(self, finished=True)

    def stop(self) -> Phase:
        """All workers are asked to end after the step that they are in."""
        return replace(self, stopping=True)

    def lose(self, left: int) -> Phase:
        """A worker is gone, and so many are left."""
        return replace(self, left=left)

    def interrupted(self, host: str, *, saves: bool) -> tuple[Phase, str]:
        """A signal came here, or to the launcher of another `host`; a scheduler may send one to every host.

        With it why the run is to stop after this step; empty if it is not, or does so already. `saves`: it then writes
        a checkpoint.
        """
        after = replace(self, signals=self.signals + (not host))
        if not self.begun:
            return after.fail(Interrupted(interrupts.EARLY)), ""  # nothing is worth a wait
        if host and self.stopping:
            return after, ""
        if after.signals <= 1:
            more = f": host {host} was asked to stop" if host else "; once more to stop at once"
            return after, f"stopping after this step{', with a checkpoint' * saves}{more}"
        return after.fail(Interrupted(f"stopped at once{', without a last checkpoint' * saves}")), ""

    def concluded(self, saved: str) -> Phase:
        """All workers have ended; what they `saved` when they stopped, in words."""
        if self.error is None and self.stopping:
            return self.fail(Interrupted(f"stopped{saved}"))
        if isinstance(self.error, Interrupted) and self.steps and not self.begun:  # news of steps came late
            return replace(self, error=Interrupted("stopped at once, in the first steps"))
        return self
