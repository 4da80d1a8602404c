"""The interface of a codec: the sum of gradients over the replicas by messages that are smaller than they are.

A codec is a generator. It yields what is to be sent, is resumed with what came of it, and leaves in `flat` the same
numbers on all replicas: roughly the sum. It returns what it left out of this replica's gradient, which is added to the
gradient of the next step (error feedback). So over many steps nothing is lost: the sums that the replicas used and what
they have left out add up to the sums of their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from torch import Tensor


class Summed(NamedTuple):
    """Add this up over all replicas: the codec gets one tensor of this shape and type."""

    tensor: Tensor


class Gathered(NamedTuple):
    """Show this to all replicas: the codec gets a list of tensors of this shape and type, in the order of replicas."""

    tensor: Tensor


Exchange = Generator[Summed | Gathered, Any, Tensor]
Codec = Callable[[Tensor, Sequence[Tensor], dict[int, Tensor]], Exchange]
"""Of a flat gradient, the window of each parameter in it, and what the codec keeps from one step to the next."""


def cut_as(other: Tensor, windows: Sequence[Tensor]) -> list[Tensor]:
    """The same windows of another tensor that is laid out like the flat gradient."""
    return [other.as_strided(one.shape, one.stride(), one.storage_offset()) for one in windows]
