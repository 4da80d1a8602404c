"""The interface of a transport: collectives among the ranks of one group, in one generation.

All ranks begin the collectives of one transport in the same order. A collective is begun by one call and ended by
`wait` on what that call returns. A transport that cannot carry a tensor returns None, and the next one is asked; that
must depend on the tensor's size, format and device alone, so that all ranks choose alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor


class LostInMessage(RuntimeError):
    """A peer was lost and the transport does not notice: this collective never ends, nor can its group be closed."""


class Sent(NamedTuple):
    """Bytes that one rank sends for a collective."""

    near: int
    """Those that do not leave its host."""
    far: int


class Work(Protocol):
    """A collective that was begun."""

    ends_by_itself: bool
    """Whether the transport notices a lost peer. If not, a rank begins the sum that commits only after `wait`."""

    def has_ended(self) -> bool:
        """Whether nothing of it goes on by itself any more; returns at once."""

    def wait(self, broken: Callable[[], bool]) -> None:
        """Until the result is here; `RuntimeError` if it never comes. `broken()` says whether a peer was lost."""


class Transport:
    """Carries tensors among the ranks of one group; what one does not override is left to gloo."""

    within_host = False
    """Whether all that it carries stays on this host."""
    stations = 0
    """How many ranks a ring of its sums has, where it is not all of them."""

    def sum(self, tensor: Tensor) -> Work | None:
        """Begin to add `tensor` up over all ranks, in place."""
        return None

    def gather(self, tensor: Tensor, parts: Sequence[Tensor]) -> Work | None:
        """Begin to copy the tensor of each rank into its part."""
        return None

    def broadcast(self, tensor: Tensor, root: int) -> Work | None:
        """Begin to give all ranks the tensor of rank `root`, in place."""
        return None

    def send(self, tensor: Tensor, rank: int, tag: int) -> Work | None:
        """Begin to send `tensor` to one rank."""
        return None

    def receive(self, tensor: Tensor, rank: int, tag: int) -> Work | None:
        """Begin to receive `tensor` from one rank."""
        return None

    def sends(self, tensor: Tensor) -> Sent | None:
        """What this rank sends in `sum`; None: as in a ring of all ranks, or it does not carry such a tensor."""
        return None

    def pace(self, rates: Mapping[str, float]) -> None:
        """Send sums no faster than this: bytes per second to some addresses."""

    def cut(self) -> None:
        """Release what waits for a lost peer; called by another thread, also while the group is being made."""

    def close(self, *, stuck: bool) -> None:
        """Let go of its connections, after `cut`; `stuck`: a collective of this generation never ends."""
