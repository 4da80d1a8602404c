"""What workers, launchers and their coordinator say to each other: one type per message, checked where it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Union

import msgspec

from cordee.core.events import ANY_EVENT, Event
from cordee.core.window import Window
from cordee.group.changes import Agreed, Answer, Command, Leaving, Message, Newcomers, Running, Turned, Without, Woke
from cordee.group.seats import FIRST_SERVER, Holding, Place, Seat, name_of

if TYPE_CHECKING:
    AnyEvent = Event
else:
    AnyEvent = ANY_EVENT

__all__ = ["Agreed", "Answer", "Command", "Leaving", "Message", "Newcomers", "Running", "Turned", "Without", "Woke"]
__all__ += ["FIRST_SERVER", "Holding", "Place", "Seat", "name_of"]

LEAVES = "it holds a part of a replica of which another part was lost"
"""Why a worker leaves that is sound itself: a process in its place can compute."""


# ------------------------------------------------------------- the handshake


class Hello(Message):
    """Each end shows a fresh number first; the coordinator's proves that it knows the token."""

    nonce: str
    proof: str = ""


class Who(Message):
    """A peer has seen that the coordinator knows the token, and says who it is."""

    role: Literal["worker", "node", "server", "command"]
    host: str
    number: int = -1
    """A worker's or a server's; the coordinator numbers the hosts."""
    interface: str = ""
    """Where a parameter server listens, or a launcher for copies of the state: address, port, and its process."""
    port: int = 0
    pid: int = 0
    workers: int = 0
    """Of a host: how many it will start."""
    joins: bool = False
    """Of a host: whether it enters a run that has begun."""
    early: bool = False
    """With `joins`: it knows what is trained, so it may be one of the first hosts too."""
    term: int = 0
    """Of the coordinator that it was connected to before; 0: of none."""
    door: tuple[str, int] = ("", 0)
    """Of a launcher: address and port at which it coordinates if it has to."""
    proof: str = ""


class Welcome(Message):
    """The peer is let in."""

    settings: dict[str, str]
    """Of the run that is resumed."""
    term: int = 1
    """How many coordinators this run has had: a peer is not let in by one with a lower number than it knows."""
    patience_s: float = 0.0
    """How long the peer looks for another coordinator when it has lost this one; 0: there will be none."""
    number: int = -1
    """Of a host: which one it is."""
    others: list[tuple[str, int]] = msgspec.field(default_factory=list)
    """Where the coordinator may be when this one is lost, besides here."""
    run: Running | None = None
    """What is trained, for a host that enters a run that has begun."""


class Stale(Message):
    """A coordinator has heard of a later one: it is none any more."""

    term: int


class Back(Message):
    """A worker has come back to a coordinator that was started anew: what it knows. What it waits for follows."""

    go: Go | None = None
    """The generation that it was told of last, as a member."""
    broken: int = -1
    """The last generation of which it knows that it is over."""
    lost: list[int] = msgspec.field(default_factory=list)
    """The members of it that it knows to be lost."""


# ------------------------------------------------------------- peers tell the coordinator


class Beat(Message):
    """This process is there."""

    at: str
    """What it is doing; named when others wait for it in vain."""
    echo: float = 0.0
    """The `sent` of the last `Clock` that it has got."""


class Posted(Message):
    """Events for the record."""

    events: list[AnyEvent]
    number: int = 0
    """How many such messages this peer has sent, with this one: what is sent again is told by it."""


class Ready(Message):
    """A worker waits for the next generation."""

    committed: int
    """Agreements behind it."""
    admits: bool
    """Whether others may come in with it."""


class Finish(Message):
    """A worker has nothing left to agree on."""


class Value(Message):
    """What a worker leaves for the peers of its generation; the coordinator passes it on to those that wait for it."""

    key: str
    value: bytes


class Get(Message):
    """A worker waits for a value of a peer."""

    key: str


class Torn(Message):
    """A collective failed though no member was lost: all shall regroup."""

    generation: int


class Unreached(Message):
    """A worker cannot connect to one on another host, though both reach the coordinator."""

    worker: int
    """That one."""
    reason: str


class Stuck(Message):
    """A wait reached its deadline; the coordinator knows who did not come."""

    awaited: str
    seconds: float
    others: dict[str, str] = msgspec.field(default_factory=dict)
    """What the other workers do, by name, as the coordinator adds."""


class Failed(Message):
    """An error ends this worker, and with it the run."""

    error: str
    """Name of the error's class in `cordee.core.errors`."""
    text: str
    """What to tell the user."""
    traceback: str = ""
    """Of the user's code; empty where the error says all there is to know."""
    next_step: str = ""
    """What the user can do now; empty where the text says it."""


class Saving(Message):
    """A checkpoint is being written, though the run has failed."""

    step: int
    seconds: float
    """How long it may take."""


class Lose(Message):
    """A worker is gone, says its host, or it cannot take part, as it says itself: the others go on without it."""

    worker: int
    reason: str


class Asked(Message):
    """A signal has asked the launcher of this host to stop: the whole run shall."""


class Filled(Message):
    """The first holder of a shard has given all that it has to another server, which is its backup from now on."""

    server: int


class Take(Message):
    """A worker asks for a part of this window; the first one that does opens it."""

    window: Window


class Done(Message):
    """A worker has computed a part of the open window, and asks for the next."""

    window: tuple[int, int]
    """The window's number."""
    step: int
    part: int
    record: list[float]
    """The numbers of the part's record."""


# ------------------------------------------------------------- the coordinator tells its peers


class Holders(Message):
    """Which servers hold what, from now on: a later view has a higher number."""

    view: int
    shards: list[Holding]


class Ticket(Message):
    """A part for this worker, of a window as it was opened."""

    window: Window
    step: int
    part: int


class WindowOver(Message):
    """All parts of a window are done."""

    window: Window
    records: list[list[float]]
    """For each step the sum of its parts' records."""
    items: list[tuple[int, int, int]]
    """Which worker did which part of which step, in the order in which they were done: worker, step, part."""


class Clock(Message):
    """The coordinator's clock, in answer to a beat."""

    seconds: float
    heard: int = 0
    """The number of the last `Posted` of this peer that has come through."""
    sent: float = 0.0
    """When it was sent, by a clock of the coordinator's that is never set."""


class Go(Message):
    """The next generation, decided: every member gets this same value."""

    generation: int
    members: tuple[int, ...]
    """Worker ids in rank order; a worker's id never changes, its rank is its place in here."""
    target: int
    """How many agreements (steps, evaluations) every member has committed after the hand-over."""
    giver: int | None
    """The worker that hands the result of agreement number `target` to those behind; None if none is behind."""
    admits: bool = False
    """Whether all former members were ready to let others in; if some were not, no worker came in."""
    newcomers: tuple[int, ...] = ()
    """Members that have come in with this generation, and have no state yet."""
    left: tuple[int, ...] = ()
    """Former members that leave with it, all of whose work is committed."""
    recorded: int = -1
    """The last step that is on record."""


class Break(Message):
    """A generation is over."""

    generation: int
    lost: int | None
    """The member that was lost; None if a collective failed though all are there."""


class Farewell(Message):
    """All have finished."""


class Stop(Message):
    """End after this step, with a checkpoint."""

    reason: str


class Again(msgspec.Struct, frozen=True):
    """How the hosts of a run that has lost its last whole replica continue it."""

    plan: str
    workers: list[int]
    """So many on each host, by its place in their order; the launcher of a host that had some, and has none, ends."""
    nodes: int
    """Hosts that continue, with those that only hold parameters."""
    keeper: Place | None = None
    """Where the coordinator takes what other hosts hold of the state in their memory."""


class Abort(Message):
    """End at once."""

    reason: str
    again: Again | None = None
    """For launchers: whether to come back to the coordinator, which continues the run."""


class Evicted(Message):
    """This peer is not let in, or the others go on without it."""

    reason: str


class Present(Message):
    """How many hosts are here, for those that wait for the others."""

    here: int
    of: int


class Known(Message):
    """What a launcher needs to know to start the coordinator again; as text that the coordinator reads."""

    state: str


class Start(Message):
    """A host is to start these workers."""

    seats: list[Seat]
    keeper: Place | None = None
    """The launcher that keeps copies of this host's state in its memory."""


ANY_MESSAGE: Any = Union[tuple(Message.__subclasses__())]  # noqa: UP007 - of a tuple
decode_message: Callable[[bytes], Message] = msgspec.json.Decoder(ANY_MESSAGE).decode
"""A message from JSON; `ValueError` for what is none."""
