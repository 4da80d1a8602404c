"""A run that has lost its last whole replica, and continues by itself: what is known of it, and the next start."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import structs

from cordee.core.errors import CordeeError, Interrupted, WorkersLost
from cordee.core.events import WarningEvent
from cordee.group.messages import Again
from cordee.runtime.coordinator.known import Known
from cordee.runtime.coordinator.recovery import LEFT, Course, Left, decide
from cordee.runtime.coordinator.state import Places
from cordee.runtime.folder import saved_step
from cordee.runtime.keeping import Kept
from cordee.runtime.launch import Continued, Launch, continued
from cordee.runtime.recorder import Recorder


@dataclass
class Recovery:
    """Decides at the end of each start of a run whether another one follows, and remembers those before."""

    launch: Launch
    """As the user started the run."""
    kept: Kept
    refusal: str = ""
    """Why none follows."""
    course: Course = field(default_factory=Course)
    again: Again | None = None
    """What follows the start that has just ended; None: nothing."""
    lost: str = ""
    """Why it has ended."""

    def see_end(self, error: CordeeError | None, known: Known, places: Places, recorder: Recorder, steps: int) -> None:
        """A start has ended in this way, after so many steps of the run: decide what follows."""
        self.again = None
        if not isinstance(error, WorkersLost) or self.launch.target.trial is not None:
            return
        left = Left.of(
            places,
            dict(known.roster.lost) | dict.fromkeys(known.roster.departed, LEFT),
            known.hosts.here,
            steps=steps,
            saved=recorder.saved is not None or saved_step(recorder.out) is not None or not self.kept.is_empty(),
        )
        refusal = self.refusal if self.launch.plan.recover != "ask" else ""
        answer = refusal or decide(self.launch.plan, self.course, left)
        if isinstance(answer, Again):
            self.again = structs.replace(answer, keeper=self.kept.place)
            self.course, self.lost = self.course.after(steps), str(error)
        elif answer:
            recorder.event(WarningEvent(f"the run does not continue by itself: {answer}"))

    def keep_newest(self, error: CordeeError, recorder: Recorder) -> None:
        """The run ends so, and its memory with it: what was lost with the workers is on disk, to be resumed from."""
        if isinstance(error, WorkersLost) and (step := self.kept.write_down(recorder.out)) is not None:
            recorder.event(WarningEvent(f"the state of step {step} was in memory; it is a checkpoint now"))

    def next(self, before: Launch, reached: int) -> Launch | None:
        """What to start on the coordinator's host after a start that came to this step; None: nothing."""
        again, self.again = self.again, None
        if again is None:
            return None
        return continued(before, again, 0, Continued(max(reached, self.course.reached), self.lost))


def failed(launch: Launch, error: CordeeError, *, begun: bool) -> CordeeError:
    """What to say of a start that ended so: what it was to continue after, if it came to nothing."""
    if launch.continued is None or begun or isinstance(error, Interrupted):
        return error
    return WorkersLost(f"{launch.continued.lost.rstrip('.')}. Continuing by itself failed: {error}")
