"""How a script comes into a run: one place where its session is put together, whatever started the process."""

from __future__ import annotations

from cordee.core.events import PlanEvent, WarningEvent
from cordee.core.plan import Plan
from cordee.core.world import World
from cordee.runtime.join import join
from cordee.train.session import Session
from cordee.train.stepper import Stepper


def session(*, plan: Plan | str | None = None, seed: int = 0) -> Session:
    """My session: of the run that started this process (cordee run, torchrun, mpirun, Slurm), or alone."""
    joined = join(world := World.from_env())
    chosen = Plan.parse(plan) if plan is not None else joined.plan
    chosen.check(world.size)
    stepper = Stepper(joined.team, plan=chosen, seed=seed, device=joined.device)
    stepper.reporter.tell(PlanEvent(chosen.to_dict(), chosen.faithfulness))
    if chosen.backend != joined.plan.backend:
        late = f"backend={chosen.backend} comes too late here: give it to `cordee run --plan`"
        stepper.reporter.tell(WarningEvent(late))
    return Session(stepper, stay=joined.launched)
