"""Tensors of which this worker holds a slice: torch's DTensor along one axis of the mesh, cut into equal parts.

Whether a tensor is one is asked without importing DTensor, which takes a second that only split runs pay for.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor


def is_sliced(tensor: Tensor) -> bool:
    """Whether this worker holds only a part of it."""
    return any(placement.is_shard() for placement in getattr(tensor, "placements", ()))


def local_of(tensor: Tensor) -> Tensor:
    """What this worker holds of it: the same memory."""
    return cast(Tensor, cast(Any, tensor.detach()).to_local()) if hasattr(tensor, "placements") else tensor


def like(pattern: Tensor, local: Tensor) -> Tensor:
    """`local` as a part of a whole that is cut as `pattern` is."""
    if not hasattr(pattern, "placements"):
        return local
    from torch.distributed.tensor import DTensor

    whole: Any = pattern
    return DTensor.from_local(
        local, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def aligned(tensor: Tensor, pattern: Tensor) -> Tensor:
    """`tensor` cut as `pattern` is; those that hold it together all call this."""
    given: Any = tensor
    if getattr(given, "placements", None) == getattr(pattern, "placements", None):
        return tensor
    return cast(Tensor, given.redistribute(placements=cast(Any, pattern).placements))


def offset_of(tensor: Tensor) -> list[int]:
    """Where in the whole the part of this worker begins, in each dimension."""
    offset = [0] * tensor.dim()
    given: Any = tensor
    for axis, placement in enumerate(getattr(tensor, "placements", ())):
        if placement.is_shard():
            offset[placement.dim] += given.device_mesh.get_local_rank(axis) * local_of(tensor).shape[placement.dim]
    return offset


def cut_as(pattern: Tensor, whole: Tensor) -> Tensor:
    """The part of `whole` that this worker holds of `pattern`, as a view."""
    for dim, (start, length) in enumerate(zip(offset_of(pattern), local_of(pattern).shape, strict=True)):
        whole = whole.narrow(dim, start, length)
    return whole
