"""`nn.MultiheadAttention` cut by heads: its projections are parameters, not layers, and it counts on all of them."""

from __future__ import annotations

import inspect
import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from cordee.core.errors import UsageError
from cordee.group.sliced import slice_of
from cordee.split.layers import Meeting, local

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_SIGNATURE = inspect.signature(nn.MultiheadAttention.forward)


def why_whole(attention: nn.MultiheadAttention, slices: int) -> str:
    """Why an attention layer cannot be cut by heads; empty if it can."""
    if attention.num_heads % slices:
        return f"its num_heads={attention.num_heads} cannot be shared out over {slices} workers"
    if type(attention).forward is not nn.MultiheadAttention.forward:
        return f"{type(attention).__name__} computes in its own way"
    if attention.in_proj_weight is None:
        return "keys or values have a width of their own (kdim, vdim)"
    if attention.bias_k is not None or attention.add_zero_attn:
        return "it adds a key of its own (add_bias_kv, add_zero_attn)"
    return ""


def cut_attention(attention: nn.MultiheadAttention, meeting: Meeting, mesh: DeviceMesh) -> None:
    """Keep this worker's heads: of query, key and value their rows, of the output projection their columns."""
    slice_of(attention, "in_proj_weight", 0, mesh, blocks=3)
    if attention.in_proj_bias is not None:
        slice_of(attention, "in_proj_bias", 0, mesh, blocks=3)
    slice_of(attention.out_proj, "weight", 1, mesh)
    attention.forward = partial(_forward, attention, meeting)  # type: ignore[method-assign]


def _forward(
    self: nn.MultiheadAttention,
    meeting: Meeting,
    *args: Any,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """What `nn.MultiheadAttention` computes, with some of its heads; `is_causal` only repeats what `attn_mask` says."""
    bound = _SIGNATURE.bind(self, *args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    query, key, value = given["query"], given["key"], given["value"]
    single = query.dim() == 2
    as_rows = self.batch_first and not single
    heads = [
        part.unsqueeze(0) if single else part if as_rows else part.transpose(0, 1)
        for part in _projected(self, meeting, (query, key, value))
    ]
    # Each of them (samples, heads, length, width of a head).
    query, key, value = (part.view(*part.shape[:-1], -1, self.head_dim).transpose(1, 2) for part in heads)
    mask = _mask(given["attn_mask"], given["key_padding_mask"], query, meeting)
    drop = self.dropout if self.training else 0.0
    told = None
    if given["need_weights"]:
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.head_dim)
        seen = (scores if mask is None else scores + mask).softmax(-1)
        told = _told(seen, self.num_heads, given["average_attn_weights"], meeting)
        mixed = nn.functional.dropout(seen, drop) @ value
    else:
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, mask, drop)
    part = linear(mixed.transpose(1, 2).flatten(2), local(self.out_proj.weight))
    whole = meeting.leave(part)
    whole = whole if self.out_proj.bias is None else whole + self.out_proj.bias.to(whole.dtype)
    whole = whole.squeeze(0) if single else whole if as_rows else whole.transpose(0, 1)
    return whole, told.squeeze(0) if single and told is not None else told


def _projected(self: nn.MultiheadAttention, meeting: Meeting, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Query, key and value of this worker's heads."""
    weights = local(self.in_proj_weight).chunk(3)
    biases = (None, None, None) if self.in_proj_bias is None else local(self.in_proj_bias).chunk(3)
    return [linear(meeting.enter(x), weight, bias) for x, weight, bias in zip(inputs, weights, biases, strict=True)]


def _mask(given: Tensor | None, padding: Tensor | None, query: Tensor, meeting: Meeting) -> Tensor | None:
    """What is added to the scores of this worker's heads: (samples or 1, heads or 1, length, length of keys)."""
    if given is not None:
        given = _added(given, query)
        if given.dim() == 3:  # one for each head of each sample
            heads = query.shape[1]
            given = given.view(query.shape[0], -1, *given.shape[1:])
            given = given[:, meeting.team.slices.rank * heads : (meeting.team.slices.rank + 1) * heads]
        else:
            given = given[None, None]
    if padding is None:
        return given
    padding = _added(padding, query).reshape(-1, 1, 1, padding.shape[-1])
    return padding if given is None else given + padding


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """As numbers to add: of a mask of truth values, those that are true are not seen."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(mask, -math.inf)


def _told(seen: Tensor, heads: int, averaged: bool, meeting: Meeting) -> Tensor:
    """The weights of the attention, averaged over the heads of all workers."""
    if not averaged:
        raise UsageError(
            "average_attn_weights=False asks for the weights of each head, but with tensor above 1 every worker has "
            "some of the heads. Leave it out, or name in tensor_plan= only the layers that are to be cut"
        )
    return meeting.leave(seen.sum(1) / heads)
