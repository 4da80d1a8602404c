"""Tensors of which this worker holds a slice: torch's DTensor along one axis of the mesh, cut into equal parts.

Where a size cannot be divided, the last part is smaller. A tensor of several blocks, such as query, key and value in
one, is cut in each of them: a slice then lies at several places of the whole. Whether a tensor is a slice is asked
without importing DTensor, which takes a second that only split runs pay for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Place(NamedTuple):
    """One box of numbers that a worker holds of a whole tensor: where it is there, and where in the worker's part."""

    offset: list[int]
    start: list[int]
    shape: list[int]


def is_sliced(tensor: Tensor) -> bool:
    """Whether this worker holds only a part of it."""
    return any(_is_shard(placement) for placement in getattr(tensor, "placements", ()))


def _is_shard(placement: Any) -> bool:
    return bool(placement.is_shard()) or hasattr(placement, "split_factor")


def slice_of(module: nn.Module, name: str, dim: int, mesh: DeviceMesh, blocks: int = 1) -> None:
    """Put this worker's slice of a parameter, whole here and the same on all workers of `mesh`, in its place."""
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    whole: nn.Parameter = getattr(module, name)
    rank, size = mesh.get_local_rank(), mesh.size()
    parts = [block.chunk(size, dim)[rank] for block in whole.detach().chunk(blocks, dim)]
    placement = Shard(dim) if blocks == 1 else _StridedShard(dim, split_factor=blocks)
    stride = torch.empty(whole.shape, device="meta").stride()
    local = torch.cat(parts, dim)
    made = DTensor.from_local(local, mesh, [placement], run_check=False, shape=whole.shape, stride=stride)
    setattr(module, name, nn.Parameter(made, requires_grad=whole.requires_grad))


def local_of(tensor: Tensor) -> Tensor:
    """What this worker holds of it: the same memory."""
    held: Tensor = getattr(tensor, "_local_tensor", tensor)  # `to_local` takes 20 times as long
    return held if held is tensor else held.detach()


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


def places_of(tensor: Tensor) -> list[Place]:
    """Which numbers of the whole this worker holds."""
    given: Any = tensor
    shape = list(local_of(tensor).shape)
    places = [Place([0] * tensor.dim(), [0] * tensor.dim(), shape)]
    for axis, placement in enumerate(getattr(tensor, "placements", ())):
        if _is_shard(placement):
            rank, parts = given.device_mesh.get_local_rank(axis), given.device_mesh.size(axis)
            dim, blocks = placement.dim, _blocks(placement)
            size = tensor.shape[dim] // blocks
            first = rank * -(-size // parts)
            places = [part for place in places for part in _in_blocks(place, dim, first, blocks, size)]
    return places


def _blocks(placement: Any) -> int:
    return int(getattr(placement, "split_factor", 1))


def _in_blocks(place: Place, dim: int, first: int, blocks: int, whole: int) -> list[Place]:
    """The boxes of a place that is cut along `dim`, one for each block, of `whole` numbers, from its `first` on."""
    size = place.shape[dim] // blocks
    return [
        Place(
            _with(place.offset, dim, block * whole + first),
            _with(place.start, dim, block * size),
            _with(place.shape, dim, size),
        )
        for block in range(blocks)
    ]


def _with(values: list[int], place: int, value: int) -> list[int]:
    return [value if at == place else one for at, one in enumerate(values)]


def cut_as(pattern: Tensor, whole: Tensor) -> Tensor:
    """The part of `whole` that this worker holds of `pattern`; a view, unless it lies at several places."""
    places = places_of(pattern)
    parts = [box_of(whole, place.offset, place.shape) for place in places]
    if len(parts) == 1:
        return parts[0]
    local = whole.new_empty(local_of(pattern).shape)
    for place, part in zip(places, parts, strict=True):
        box_of(local, place.start, place.shape).copy_(part)
    return local


def box_of(tensor: Tensor, start: list[int], shape: list[int]) -> Tensor:
    """The numbers of a tensor in a box, as a view."""
    for dim, (first, length) in enumerate(zip(start, shape, strict=True)):
        tensor = tensor.narrow(dim, first, length)
    return tensor
