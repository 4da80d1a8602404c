"""Tensors of which this worker holds a part: torch's DTensor along the axes `slice` and `shard` of the mesh.

Where a size cannot be divided, the last parts are smaller, or empty. A tensor of several blocks, such as query, key and
value in one, is cut in each of them: a slice then lies at several places of the whole. A shard is some of the rows of a
tensor, or of a slice. Whether a tensor is a part is asked without importing DTensor, which takes a second that only
split runs pay for.
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


def is_sliced(tensor: Tensor, axis: str = "") -> bool:
    """Whether this worker holds only a part of it: as it is cut along one axis of the mesh, or along any."""
    return any(axis in ("", name) for name in axes_of(tensor))


def axes_of(tensor: Tensor) -> frozenset[str]:
    """The axes of the mesh along which it is cut."""
    return frozenset(name for name, _, _ in _cuts(tensor))


def _cuts(tensor: Tensor) -> list[tuple[str, int, Any]]:
    """Along which axes of the mesh a tensor is cut: name, place and placement; slices before shards of them."""
    mesh = getattr(tensor, "device_mesh", None)
    names = () if mesh is None else mesh.mesh_dim_names or ("slice",) * mesh.ndim
    axes = zip(names, range(len(names)), getattr(tensor, "placements", ()), strict=True)
    return [axis for axis in axes if _is_shard(axis[2])][::-1]


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
    nought = [0] * tensor.dim()
    places = [Place(nought, nought, list(tensor.shape))]
    for name, axis, placement in _cuts(tensor):
        rank, count = given.device_mesh.get_local_rank(axis), given.device_mesh.size(axis)
        # A shard of a slice has a `split_factor` too: the number of slices, which are cut before it.
        blocks = int(getattr(placement, "split_factor", 1)) if name == "slice" else 1
        places = _cut(places, placement.dim, rank, count, blocks)
    return places


def _cut(places: list[Place], dim: int, rank: int, count: int, blocks: int) -> list[Place]:
    """Of what these boxes are of a whole, the part with number `rank` of `count` along `dim`: of each block a part."""
    total = max((place.start[dim] + place.shape[dim] for place in places), default=0) // blocks
    size = -(-total // count)
    kept, filled = [], 0
    for block in range(blocks):
        first = min(block * total + rank * size, (block + 1) * total)
        last = min(first + size, (block + 1) * total)
        for offset, start, shape in places:
            at = max(first, start[dim])
            length = min(last, start[dim] + shape[dim]) - at
            if length > 0:
                where = offset[dim] + at - start[dim], filled + at - first, length
                kept.append(
                    Place(*(_with(one, dim, value) for one, value in zip((offset, start, shape), where, strict=True)))
                )
        filled += last - first
    return kept


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
