"""BatchNorm over the global batch: every sample is normalised with the statistics of all samples of the step.

Counts, means and squared deviations of the shares are gathered (one small collective) and merged by the parallel
variance formula, which stays exact where sums of squares would cancel. Shares weigh by their count; an empty share's
borrowed sample counts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from cordee.core.errors import ModelError
from cordee.group.rope import Rope


@dataclass
class StepState:
    """What a step's collectives have to know, shared between the session and the layers of its model."""

    silent: bool = False
    """This replica's share is empty: its borrowed sample counts nothing."""
    void: bool = False
    """A collective of this step failed: its result will not be used."""


class _Exact(_BatchNorm):
    """Takes the place of a BatchNorm layer's class; parameters, buffers and names stay."""

    rope: Rope
    step_state: StepState

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.rope.size == 1:
            return super().forward(input)
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        mean, variance, count = _global_statistics(input.detach(), self.rope, self.step_state)
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            self._track(mean, variance, count)
        weight = self.weight if self.affine else None
        bias = self.bias if self.affine else None
        invstd = torch.rsqrt(variance + self.eps)
        statistics = (mean, invstd, count)
        result: Tensor = _Normalise.apply(input, weight, bias, statistics, self.rope, self.step_state)  # type: ignore[no-untyped-call]
        return result

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: float) -> None:
        assert self.num_batches_tracked is not None and self.running_mean is not None and self.running_var is not None
        self.num_batches_tracked.add_(1)
        factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / max(count - 1.0, 1.0))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)


class _Replica(_BatchNorm):
    """Statistics of the own share, as without us; the borrowed sample of an empty share leaves no trace in them."""

    rope: Rope
    step_state: StepState

    def forward(self, input: Tensor) -> Tensor:
        if not (self.training and self.step_state.silent):
            return super().forward(input)
        mean = self.running_mean if self.running_mean is not None else input.new_zeros(input.shape[1])
        variance = self.running_var if self.running_var is not None else input.new_ones(input.shape[1])
        return nn.functional.batch_norm(input, mean, variance, self.weight, self.bias, training=False, eps=self.eps)


def bind(model: nn.Module, mode: str, rope: Rope, step_state: StepState, *, compiled: bool = False) -> int:
    """Give every BatchNorm layer the statistics of the plan (`exact`, `replica`); returns how many there are.

    One worker has the global batch to itself and needs nothing. In a `compiled` model the layers that communicate are
    left as they are.
    """
    if rope.size == 1 and not any(isinstance(module, _Exact | _Replica) for module in model.modules()):
        return 0
    kind = {"exact": _Exact, "replica": _Replica}[mode]
    count = 0
    for module in model.modules():
        if not isinstance(module, _BatchNorm) or isinstance(module, nn.SyncBatchNorm):
            continue
        if isinstance(module, _Exact | _Replica):  # of a former session
            module.rope, module.step_state = rope, step_state
        else:
            plain = type(module)
            if mode == "exact" and plain.forward is not _BatchNorm.forward:
                raise ModelError(
                    f"{plain.__name__} is a BatchNorm with a forward of its own, which statistics over the global "
                    "batch would replace. Put what it adds into a layer of its own, or use the plan batchnorm=replica"
                )
            name = f"{mode.capitalize()}{plain.__name__}"
            module.__class__ = type(name, (kind, plain), {"rope": rope, "step_state": step_state})
        if compiled and rope.size > 1:
            module.forward = torch.compiler.disable(module.forward)  # type: ignore[method-assign, no-untyped-call]
        count += 1
    return count


def _channels(tensor: Tensor) -> tuple[list[int], list[int]]:
    """The dimensions to reduce over, and the shape in which per-channel values broadcast."""
    return [d for d in range(tensor.dim()) if d != 1], [1, -1, *([1] * (tensor.dim() - 2))]


def _global_statistics(x: Tensor, rope: Rope, state: StepState) -> tuple[Tensor, Tensor, float]:
    """Mean, biased variance and count of the global batch, per channel."""
    dims, _ = _channels(x)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    silent = state.silent or x.numel() == 0
    count = 0.0 if silent else float(x.numel() // x.shape[1])
    mean = variance = torch.zeros(x.shape[1], dtype=wide, device=x.device)
    if not silent:
        variance, mean = torch.var_mean(x.to(wide), dim=dims, correction=0)
    mine = torch.cat([mean, variance, mean.new_tensor([count])])
    everybody = None if state.void else rope.gather(mine)
    if everybody is None:  # the step is void: any finite numbers will do until it is done again
        state.void = True
        return mean, variance, max(count, 1.0)
    table = torch.stack(everybody)
    channels = x.shape[1]
    means, variances, counts = table[:, :channels], table[:, channels:-1], table[:, -1:]
    total = counts.sum()
    mean = (means * counts).sum(0) / total
    variance = ((variances + (means - mean) ** 2) * counts).sum(0) / total
    return mean, variance, float(total)


class _Normalise(torch.autograd.Function):
    """(x - mean) / std * weight + bias, with the gradient through mean and std summed over the global batch."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, statistics: Any, rope: Rope, state: StepState
    ) -> Tensor:
        mean, invstd, count = statistics
        _, shape = _channels(x)
        ctx.save_for_backward(x, weight, mean, invstd)
        ctx.count, ctx.rope, ctx.state, ctx.has_bias = count, rope, state, bias is not None
        scale = invstd if weight is None else invstd * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        return torch.addcmul(shift.view(shape), x.to(scale.dtype), scale.view(shape)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        x, weight, mean, invstd = ctx.saved_tensors
        dims, shape = _channels(x)
        centred = (x.to(mean.dtype) - mean.view(shape)) * invstd.view(shape)
        gradient = gradient.to(mean.dtype)
        sums = torch.cat([gradient.sum(dims), (gradient * centred).sum(dims)])
        mine = torch.zeros_like(sums) if ctx.state.silent else sums
        everybody = None if ctx.state.void else ctx.rope.gather(mine)
        if everybody is None:
            ctx.state.void = True
            everybody = [mine]
        total = torch.stack(everybody).sum(0)
        channels = mean.numel()
        of_gradient, of_product = (total[:channels] / ctx.count).view(shape), (total[channels:] / ctx.count).view(shape)
        scale = invstd if weight is None else invstd * weight
        d_x = (gradient - of_gradient - centred * of_product) * scale.view(shape)
        # Weight and bias are parameters: their local sums go through the reducer like every other gradient.
        d_weight = sums[channels:].to(weight.dtype) if weight is not None else None
        d_bias = sums[:channels] if ctx.has_bias else None
        return d_x.to(x.dtype), d_weight, d_bias, None, None, None
