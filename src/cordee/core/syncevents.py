"""Events of how replicas agree: windows, parameter servers, positions, what sync=auto decides; see `events.py`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from cordee.core.event import Count, Event, Moment, Number


class WindowEvent(Event):
    """The steps of a window were committed together, where workers do not wait for each other in every step."""

    first: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    """its first step, counted as in `step`"""
    last: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    """its last step"""
    workers: list[Count]
    """the workers when it began: each of its steps was cut into a part for each of them"""
    items: list[tuple[Count, Count, Count]]
    """worker, step and part of all that was computed, in the order in which it was done; a step before `first` was
    computed again, because a worker was lost whose part of it was still under way"""
    behind: bool = False
    """whether its merge was still under way then: it is applied at the end of the next window"""


class ServerEvent(Event):
    """A parameter server was lost, or takes another role."""

    server: Count
    """which server"""
    shard: Count
    """the part of the parameters that it was started for"""
    what: str
    """`first`: workers talk to it from now on; `backup`: it has all that the first acknowledged; `lost`"""
    host: str
    """where"""
    pid: Count = 0
    """its process; 0 for one that was lost"""
    reason: str = ""
    """what was seen of a loss, or why it takes this role; empty at the start"""
    at: Moment | None = None
    """when, in the launcher's clock"""


class TrafficEvent(Event):
    """What a parameter server has sent."""

    server: Count
    """which server"""
    host: str
    """where"""
    bytes_sent: Count
    """bytes it has sent to workers and to its backup since its start"""
    bytes_near: Count
    """the part of it that did not leave its host"""


class PushesEvent(Event):
    """What a worker pushed in a window, where parameter servers apply each push at once."""

    worker: Count
    """whose pushes"""
    version: Count
    """updates that the servers have made by the end of the window"""
    pushes: list[tuple[Count, Count, Count, Count]]
    """step, part, version after it, and staleness: updates of others since the parameters that it was computed with"""


class PositionEvent(Event):
    """Where a worker stands: at its start, in a new generation, after a change of shares, and at the end.

    `cordee audit` proves from them which samples each worker's steps had.
    """

    worker: Count
    """whose position"""
    why: Literal["start", "regroup", "shares", "leave", "end"]
    """what made it one"""
    generation: Count
    """number of its group of workers"""
    step: Count
    """steps committed on this worker, over all starts of the run"""
    samples: Count
    """samples of all of them"""
    order_sha256: str
    """chained over them: the ids that reached all workers, and where in the global batch; empty before the first"""
    members: list[Count]
    """the workers of the group"""
    owners: list[Count]
    """the numbers over which each step is cut, one for each share: those of `members` where each computes its own"""
    shares: list[tuple[Count, str, list[Number], int]]
    """how steps are cut: first step (counted from 0), rule, proportions and seed of each share that was agreed on"""
    part: Count = 0
    """which part of the model it holds: the same number on all replicas, 0 where each holds the whole model"""
    params_sha256: str = ""
    """of the parameters of that part, at the end of a job; empty before, and where the loop is the user's own"""


class SharesEvent(Event):
    """Shares were balanced: each replica computes as much of a step as it has shown to be fast."""

    step: Count
    """from which step on, counted as in `step`"""
    owners: list[Count]
    """the numbers of the shares, as in `position`"""
    before: list[Count]
    """samples of each share of a whole batch until then"""
    after: list[Count]
    """samples of each from then on"""
    measured_ms: list[Number]
    """how long each took for those before: the median of some steps, from the step before until all was computed"""
    reason: str
    """why it was decided: the start, other members, a changed speed, or a change of shares just before"""


class StragglerEvent(Event):
    """A worker makes the others wait, step after step; and another one when it does so no longer."""

    worker: Count
    """which worker"""
    host: str
    """where it runs"""
    cause: Literal["data", "compute", "callbacks", "network", "paused"]
    """what it takes longer for than the others. `network`: the link of its host; `paused`: its process did not run"""
    step: Count
    """from which step on, counted as in `step`"""
    steps: Count
    """how many steps it has lasted"""
    took_ms: Number
    """what a step of it takes for that; of `compute`, for as many samples as it has"""
    usual_ms: Number
    """what it takes on the others; of `network`, what it would take over the next slower link"""
    over: bool
    """whether it is over"""
    done: str
    """what was done about it, or what could be done"""


class CoordinatorEvent(Event):
    """A coordinator was started: the process that knows which workers are in."""

    term: Count
    """how many there have been, with this one; a worker does not listen to one with a lower number"""
    host: str
    """where it runs"""
    pid: Count
    """its process"""
    reason: str = ""
    """what became of the one before; empty for the first"""


class DecisionEvent(Event):
    """What sync=auto decided on, and from what."""

    step: Count
    """from which step on"""
    before: str
    """how replicas agreed until then"""
    choice: str
    """how they agree from now on: `none` (exact sums), a codec, or local steps as a plan writes them"""
    reason: str
    """in words"""
    compute_ms: Number
    """of a step, on the slowest worker; 0 before it was measured"""
    link_mbit: Number
    """what a worker was measured to send, in Mbit/s"""
    measured_ms: Number
    """the time of a step since the last decision"""
    forecast_ms: dict[str, Number]
    """the time of a step by each way that may be chosen"""


class ContinuedEvent(Event):
    """A run that had lost its last whole replica continues by itself."""

    step: Count
    """after which step"""
    source: Literal["memory", "disk"]
    """where the state of that step was"""
    workers: Count
    """workers that continue"""
    plan: str
    """their plan"""
    repeats: Count
    """steps on record after that one, which are computed again: they count once"""
    reason: str
    """what ended the start before"""
