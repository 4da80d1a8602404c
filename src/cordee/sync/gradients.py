"""Gradients as a whole: their norm, their scale, their length; in place, whatever their formats and devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn


def drop(parameters: Iterable[nn.Parameter]) -> None:
    """Forget all gradients."""
    for parameter in parameters:
        parameter.grad = None


def unscale(gradients: Sequence[Tensor], scale: float) -> bool:
    """Divide by the scale of the loss; False if a number among them is not finite."""
    found = []
    for group in _kinds(gradients):
        flag = torch.zeros(1, device=group[0].device)
        factor = torch.full((1,), 1.0 / scale, device=group[0].device)
        torch._amp_foreach_non_finite_check_and_unscale_(group, flag, factor)
        found.append(flag)
    return not any(flag.item() for flag in found)


def norm_of(gradients: Sequence[Tensor]) -> Tensor:
    """Of all of them together, in float32 at least; still on its device."""
    if len(gradients) == 1 and gradients[0].dtype in (torch.float32, torch.float64):
        of_one: Tensor = torch.linalg.vector_norm(gradients[0])
        return of_one
    norms: list[Tensor] = []
    for group in _kinds(gradients):
        wide = torch.float32 if group[0].dtype in (torch.float16, torch.bfloat16) else None
        norms += torch._foreach_norm(group, 2.0, wide)
    if not norms:
        return torch.zeros(())
    whole: Tensor = torch.linalg.vector_norm(torch.stack([one.to(norms[0]) for one in norms]))
    return whole


def shorten(gradients: Sequence[Tensor], norm: Tensor, most: float) -> Tensor:
    """Bound their `norm` to `most`, as `clip_grad_norm_` does; by which factor."""
    factor = torch.clamp(most / (norm + 1e-6), max=1.0)
    for group in _kinds(gradients):
        torch._foreach_mul_(group, factor.to(group[0].device))
    return factor


def treat(gradients: Sequence[Tensor], scale: float, clip: float | None) -> tuple[bool, Tensor, Tensor]:
    """Take the scale of the loss away and bound the norm: whether all are finite, the norm before, by which factor."""
    fits = scale == 1.0 or unscale(gradients, scale)
    norm = norm_of(gradients)
    if fits and clip is not None and (norm.is_cuda or norm.isfinite()):  # or the session looks which are not
        return fits, norm, shorten(gradients, norm, clip)
    return fits, norm, torch.ones(())


def _kinds(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Those of one device and format together, as kernels for many tensors want them."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for one in gradients:
        groups.setdefault((one.device, one.dtype), []).append(one)
    yield from groups.values()
