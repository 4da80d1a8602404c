"""BatchNorm over the global batch: every sample is normalised with the statistics of all samples of the step.

Counts, means and variances of the shares are gathered (one small collective) and merged by the parallel variance
formula, which stays exact where sums of squares would cancel. Shares weigh by their count, whatever their loss weighs;
an empty share's borrowed sample counts nothing.

What is per channel is gathered and merged on the CPU in float64, wherever the activations are: it is small, and a mean
that is large against its deviation is not rounded on the way. What is per element is left to the kernels of torch's
own BatchNorm, each of which reads the activations once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from cordee.core.errors import ModelError
from cordee.group.comm import Comm
from cordee.group.replay import once
from cordee.sync.meeting_points import output_like

_Statistics = tuple[Tensor, Tensor, float]
"""Mean and biased variance of the global batch, per channel, in float64 on the CPU; and how many values it has."""


@dataclass
class StepState:
    """What a step's collectives have to know, shared between the session and the layers of its model."""

    silent: bool = False
    """This replica's share is empty: its borrowed sample counts nothing."""
    void: bool = False
    """A collective of this step failed: its result will not be used."""
    together: bool = False
    """All workers evaluate shares of the same batches: layers without running statistics may ask each other."""


class _Bound(_BatchNorm):
    """Takes the place of a BatchNorm layer's class; parameters, buffers and names stay."""

    exact: bool
    comm: Comm
    step_state: StepState

    def forward(self, input: Tensor) -> Tensor:
        state, of_batch = self.step_state, self.training or _of_batch(self)
        if self.exact and self.comm.size > 1 and (self.training or (state.together and of_batch)):
            return self._normalise_globally(input)
        if not self.exact and state.silent and of_batch:  # the borrowed sample of an empty share leaves no trace
            mean = self.running_mean if self.running_mean is not None else input.new_zeros(input.shape[1])
            variance = self.running_var if self.running_var is not None else input.new_ones(input.shape[1])
            return nn.functional.batch_norm(input, mean, variance, self.weight, self.bias, training=False, eps=self.eps)
        _refuse_one_value(self, (input,), {})
        # torch's own SyncBatchNorm would communicate if the script has made a process group.
        return _BatchNorm.forward(self, input) if isinstance(self, nn.SyncBatchNorm) else super().forward(input)

    def _normalise_globally(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        statistics = once(lambda: self._take_statistics(input.detach()))
        affine = (self.weight, self.bias) if self.affine else (None, None)
        result: Tensor = _Normalise.apply(input, *affine, statistics, self.eps, self.comm, self.step_state)  # type: ignore[no-untyped-call]
        return result

    def _take_statistics(self, input: Tensor) -> _Statistics:
        """Those of the global batch, which the running ones follow."""
        statistics = mean, variance, count = _global_statistics(input, self.comm, self.step_state)
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            assert self.num_batches_tracked is not None
            with torch.no_grad():
                self.num_batches_tracked.add_(1)
                factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
                unbiased = variance * (count / max(count - 1.0, 1.0))
                self.running_mean.lerp_(mean.to(self.running_mean), factor)
                self.running_var.lerp_(unbiased.to(self.running_var), factor)
        return statistics


def bind(
    model: nn.Module, mode: str, comm: Comm, step_state: StepState, *, compiled: bool = False, grows: bool = False
) -> None:
    """Give every BatchNorm layer the statistics of the plan: `exact`, or as without us, `replica`.

    torch's SyncBatchNorm is a BatchNorm like others. One worker has the global batch to itself: its layers stay as they
    are, and only refuse what several would refuse; unless it `grows`, and others may come. In a `compiled` model the
    layers that communicate are left as they are.
    """
    layers = batchnorms(model)
    if comm.size == 1 and not grows and not any(isinstance(layer, _Bound) for layer in layers):
        for layer in layers:
            if _refuse_one_value not in layer._forward_pre_hooks.values():
                layer.register_forward_pre_hook(_refuse_one_value, with_kwargs=True)
        return
    for layer in layers:
        plain = _plain_type(layer)
        if mode == "exact" and plain.forward not in (_BatchNorm.forward, nn.SyncBatchNorm.forward):
            raise ModelError(
                f"{plain.__name__} is a BatchNorm with a forward of its own, which statistics over the global "
                "batch would replace. Put what it adds into a layer of its own, or use the plan batchnorm=replica"
            )
        # All on the class: a copy of the layer must have neither this one's forward nor a copy of what it uses.
        of_class = {"exact": mode == "exact", "comm": comm, "step_state": step_state}
        if compiled and (comm.size > 1 or grows):
            of_class["forward"] = torch.compiler.disable(_Bound.forward)  # type: ignore[no-untyped-call]
        layer.__class__ = type(f"{mode.capitalize()}{plain.__name__}", (_Bound, plain), of_class)


@contextmanager
def together(model: nn.Module, comm: Comm) -> Iterator[StepState]:
    """All members of `comm` evaluate shares of the same batches in here, with the same passes through the model.

    Layers without running statistics normalise by their batch in evaluation too, which is then that of all shares. If
    there are any, the state says `together`: empty shares have to compute along, silently.
    """
    bound = (one for one in batchnorms(model) if isinstance(one, _Bound) and one.comm is comm and _of_batch(one))
    state = next((one.step_state for one in bound), None) if comm.size > 1 else None
    if state is None:
        yield StepState()
        return
    kept = state.silent, state.void
    state.silent, state.void, state.together = False, False, True
    try:
        yield state
    finally:
        (state.silent, state.void), state.together = kept, False


@contextmanager
def set_aside(model: nn.Module) -> Iterator[None]:
    """In here layers without running statistics have fixed ones, so that in evaluation mode no layer mixes samples."""
    kept = [(layer, type(layer)) for layer in batchnorms(model) if _of_batch(layer)]
    fixed = {"exact": False, "step_state": StepState(silent=True)}
    for layer, former in kept:
        layer.__class__ = type(former.__name__, (_Bound, _plain_type(layer)), fixed)
    try:
        yield
    finally:
        for layer, former in kept:
            layer.__class__ = former


def batchnorms(model: nn.Module) -> list[_BatchNorm]:
    """The layers of a model that normalise by their batch."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def _plain_type(layer: _BatchNorm) -> Any:
    """What it was before it was bound, as by a former session."""
    return type(layer).__bases__[1] if isinstance(layer, _Bound) else type(layer)


def _of_batch(layer: _BatchNorm) -> bool:
    """Whether it normalises by its batch in evaluation too, for want of running statistics."""
    return layer.running_mean is None and layer.running_var is None


def _refuse_one_value(layer: _BatchNorm, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Say of one value per channel what `_global_statistics` says of it."""
    if layer.training or _of_batch(layer):
        x = args[0] if args else kwargs["input"]
        if x.dim() > 1 and x.numel() == x.shape[1]:
            raise _one_value(x)


def _one_value(x: Tensor) -> ModelError:
    return ModelError(
        f"BatchNorm over {x.shape[1]} channels got one value per channel, where a variance needs two or more: a batch "
        "(with batchnorm=replica a share) of one sample. If it is what is left over at the end of an epoch, leave it "
        "out with Job(drop_last=True), or choose another batch (for validation and test: eval_batch)"
    )


def _channels(tensor: Tensor) -> tuple[list[int], list[int]]:
    """The dimensions to reduce over, and the shape in which per-channel values broadcast."""
    return [d for d in range(tensor.dim()) if d != 1], [1, -1, *([1] * (tensor.dim() - 2))]


def _wide(x: Tensor) -> torch.dtype:
    """The format to compute in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _global_statistics(x: Tensor, comm: Comm, state: StepState) -> _Statistics:
    """Merged from all shares; of our own alone if the step is void."""
    silent = state.silent or x.numel() == 0
    count = 0.0 if silent else float(x.numel() // x.shape[1])
    own = torch.zeros(2, x.shape[1], dtype=torch.float64) if silent else _moments(x)
    of_all = None if state.void else comm.gather(torch.cat([own.view(-1), own.new_tensor([count])])).wait()
    if of_all is None:  # the step is void: any finite numbers will do until it is done again
        state.void = True
        return own[0], own[1], max(count, 1.0)
    table = torch.stack(of_all)
    counts, means, variances = table[:, -1:], *table[:, :-1].chunk(2, dim=1)
    total = float(counts.sum())
    if total == 1.0:  # all replicas know it, so all raise it
        raise _one_value(x)
    mean = (means * counts).sum(0) / total
    variance = ((variances + (means - mean) ** 2) * counts).sum(0) / total
    return mean, variance, total


def _moments(x: Tensor) -> Tensor:
    """Mean and variance of a share, per channel, in float64 on the CPU: (2, channels).

    On a CPU `torch.var_mean` takes ten times as long, and `torch.batch_norm_update_stats` adds up in float32, one
    number after the other, where channels lie innermost: a mean of 10,000 may then be 100 deviations off.
    """
    dims, shape = _channels(x)
    if not x.is_cpu:
        variance, mean = torch.var_mean(x.to(_wide(x)), dim=dims, correction=0)
        return torch.stack([mean, variance]).to("cpu", torch.float64)
    rough = x.mean(dims, dtype=_wide(x))
    rest = x - rough.view(shape)  # as exact as x is: what the rough mean lacks is the mean of the rest
    offset = _mean_of_samples(rest)
    variance = _mean_of_samples(rest.square_()) - offset.square()
    return torch.stack([rough + offset, variance.clamp_(min=0.0)])


def _mean_of_samples(values: Tensor) -> Tensor:
    """Per channel: over what lies within a sample in the format of `values`, over the samples in float64."""
    inner = list(range(2, values.dim()))
    return (values.mean(inner) if inner else values).mean(0, dtype=torch.float64)


def _scaled(x: Tensor, centre: Tensor, scale: Tensor, shift: Tensor | None) -> Tensor:
    """`(x - centre) * scale + shift`, per channel, in one pass."""
    if x.numel() == 0:  # refused on a GPU
        return torch.empty_like(x)
    one = torch.ones_like(centre)
    result: Tensor = torch.native_batch_norm(x, scale, shift, centre, one, False, 0.0, 0.0)[0]
    return result


def _sums(gradient: Tensor, x: Tensor, mean: Tensor) -> Tensor:
    """Of `gradient`, and of `gradient * (x - mean)`, per channel: (2, channels)."""
    if x.is_cuda:  # where channels lie outside, the kernel below rounds to the format of x after each addition
        gradient, x = gradient.to(mean.dtype), x.to(mean.dtype)
    # On a CPU the kernel that gives both in one pass adds up as `_moments` says, unless channels lie outside.
    if x.numel() and (x.is_cuda or (x.stride(1) > 1 and x.is_contiguous() and gradient.is_contiguous())):
        one = torch.ones_like(mean)
        _, of_product, of_gradient = torch.ops.aten.native_batch_norm_backward(
            gradient, x, one, mean, one, mean, one, False, 0.0, [False, True, True]
        )
        return torch.stack([of_gradient, of_product])
    dims, shape = _channels(x)
    return torch.stack([gradient.sum(dims, dtype=mean.dtype), torch.sub(x, mean.view(shape)).mul_(gradient).sum(dims)])


class _Normalise(torch.autograd.Function):
    """(x - mean) / std * weight + bias, with the gradient through mean and std summed over the global batch."""

    meets = True
    """Its backward pass meets that of other shares."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        statistics: _Statistics,
        eps: float,
        comm: Comm,
        state: StepState,
    ) -> Tensor:
        centre, variance, count = statistics
        mean, invstd = torch.stack([centre, torch.rsqrt(variance + eps)]).to(x.device, _wide(x))
        ctx.save_for_backward(x, weight, mean, invstd)
        ctx.count, ctx.comm, ctx.state, ctx.has_bias = count, comm, state, bias is not None
        scale = invstd if weight is None else invstd * weight
        output = _scaled(x, mean, scale.to(mean.dtype), None if bias is None else bias.to(mean.dtype))
        ctx.output = output_like(output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        x, weight, mean, invstd = ctx.saved_tensors
        sums = _sums(gradient, x, mean)
        mine = torch.zeros(sums.shape, dtype=torch.float64) if ctx.state.silent else sums.to("cpu", torch.float64)
        of_all = None if ctx.state.void else ctx.comm.gather(mine).wait()
        if of_all is None:
            ctx.state.void = True
            of_all = [mine]
        of_gradient, of_product = (torch.stack(of_all).sum(0) / ctx.count).to(mean)
        scale = invstd if weight is None else (invstd * weight).to(mean.dtype)
        # (gradient - of_gradient - (x - mean) * invstd² * of_product) * scale
        d_x = _scaled(x.to(mean.dtype), mean, -scale * invstd**2 * of_product, -scale * of_gradient)
        d_x.addcmul_(gradient, scale.view(_channels(x)[1]))
        if ctx.state.silent:  # a borrowed sample is not in the statistics
            d_x.zero_()
        # Weight and bias are parameters: their local sums go through the reducer like every other gradient.
        d_weight = (sums[1] * invstd).to(weight.dtype) if weight is not None else None
        d_bias = sums[0] if ctx.has_bias else None
        return d_x.to(x.dtype), d_weight, d_bias, None, None, None, None
