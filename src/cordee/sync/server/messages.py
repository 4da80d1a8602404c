"""What workers say to parameter servers, servers to their backups, and what they answer; tensors follow the message.

Parameters are named by their number within the server's shard. Where workers are synchronous, `step` counts the
updates of one optimizer, and `attempt` says which try of that step it is: the generation of the workers, and how often
gradients were taken back within it. Where they are not, each push is applied by itself: `item` is the window, the step
and the part of it that were computed, and `step` counts the pushes that were applied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Union

import msgspec

Item = tuple[int, int, int, int]
"""The number of a window (two), a step of it, and a part of that."""


class Said(msgspec.Struct, tag_field="said", tag=str.lower, forbid_unknown_fields=True):
    """One message; `said` holds its kind."""


class Form(msgspec.Struct, frozen=True):
    """The shape and number format of a tensor."""

    shape: tuple[int, ...]
    dtype: str


class Held(msgspec.Struct, frozen=True):
    """Something that an optimizer keeps for one parameter: a tensor, or a plain value."""

    number: int
    name: str
    form: Form | None = None
    """Of a tensor, which follows."""
    value: Any = None


class Group(msgspec.Struct, frozen=True):
    """A group of parameters of an optimizer."""

    numbers: list[int]
    settings: dict[str, Any]


class Rule(msgspec.Struct, frozen=True):
    """An optimizer: its class, what it was made with, and its groups."""

    kind: str
    """`module:name`."""
    defaults: dict[str, Any]
    groups: list[Group]


# ------------------------------------------------------------- from workers to the first holder of a shard


class Open(Said):
    """Is this shard there? Answered by `Opened`."""

    shard: int
    key: int
    """Which optimizer of the run."""
    forms: list[Form]
    """Of its parameters: if the server has others, this is refused."""


class Load(Said):
    """All that a shard holds; parameters and the optimizer's tensors follow. The first one counts.

    Answered by `Opened`. A backup takes it from the first holder at any time.
    """

    shard: int
    key: int
    version: int
    """Updates that were made before."""
    forms: list[Form]
    rule: Rule
    held: list[Held]
    applied: list[tuple[Item, int]] = []
    """Items that were applied, and which workers had pushed them."""


class Push(Said):
    """Gradients of some parameters, which follow; those of others in the piece are missing. Not answered."""

    key: int
    step: int
    attempt: tuple[int, int]
    worker: int
    numbers: list[int]
    item: Item | None = None
    """What they are of, where each push is applied by itself."""
    codec: str = ""
    """By which they are packed: then one tensor follows."""


class Close(Said):
    """This worker has pushed all it has. Answered by `Norm` when these workers all have, else `Void` or `Missing`."""

    key: int
    step: int
    attempt: tuple[int, int]
    worker: int
    pieces: int
    """How many messages it has pushed."""
    workers: list[int]
    over: bool = False
    """Whether one of them is known to be lost: then this is answered at once."""


class Apply(Said):
    """Update by the sum of this step, times a factor. Answered by `Fresh`, with the parameters."""

    key: int
    step: int
    attempt: tuple[int, int]
    factor: float
    groups: list[dict[str, Any]]
    """The settings of each group now: a schedule changes them."""
    item: Item | None = None
    """What was pushed, where each push is applied by itself."""
    worker: int = -1
    """Which one has pushed that."""
    share: float = 1.0
    """How much of a global batch that is."""


class Update(Said):
    """Update by what this worker has pushed of an item, unless that was done. Answered by `Fresh`, or `Missing`."""

    key: int
    item: Item
    worker: int
    pieces: int
    share: float
    """How much of a global batch the item is."""
    factor: float
    groups: list[dict[str, Any]]


class Pull(Said):
    """Answered by `Fresh`, with the parameters."""

    key: int


class Keep(Said):
    """Answered by `Kept`, with what the optimizer keeps."""

    key: int


# ------------------------------------------------------------- from the first holder of a shard to its backup


class Seal(Said):
    """The sum of a step, of those parameters that have a gradient. Answered by `Done`."""

    key: int
    step: int
    attempt: tuple[int, int]
    numbers: list[int]


class Copy(Said):
    """Make the same update as the first holder is about to make. Answered by `Done`."""

    update: Apply


# ------------------------------------------------------------- answers


class Opened(Said):
    """The shard is there; whether it was loaded, and how many updates were made."""

    loaded: bool
    version: int
    base: int
    """Of them, those before the open window."""


class Norm(Said):
    """The sum is complete, and the backup has it too: the square of its norm, None if that is not finite."""

    square: float | None


class Missing(Said):
    """The gradients of this worker are not here: push them again."""


class Void(Said):
    """Workers of this attempt were lost."""


class Fresh(Said):
    """So many updates were made; the parameters follow."""

    version: int
    worker: int = -1
    """Whose push counts for the item that was asked for; another one may have been faster."""


class Kept(Said):
    """What the optimizer keeps; its tensors follow."""

    held: list[Held]


class Done(Said):
    """The backup has it."""


class Elsewhere(Said):
    """This server is not what it was taken for: the coordinator says which one is."""


class Refused(Said):
    """What was asked cannot be done; the run ends."""

    reason: str
    error: str = ""
    """The class of the error, if it is one of Cordée's."""


ANY: Any = Union[tuple(Said.__subclasses__())]  # noqa: UP007 - of a tuple
decode: Callable[[bytes], Said] = msgspec.json.Decoder(ANY).decode
