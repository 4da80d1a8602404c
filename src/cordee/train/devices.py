"""What makes a device compute faster and changes no result but its rounding: fused updates, layout, compiling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from cordee.core.errors import ModelError
from cordee.core.plan import Plan
from cordee.feed.batch import Batch
from cordee.feed.permute import random_bits
from cordee.feed.reading import begin_others
from cordee.sync.allreduce import is_dense
from cordee.train.job import Job

FUSABLE = (Adam, AdamW, SGD, Adagrad)
"""PyTorch's optimizers with one kernel for all parameters; subclasses may do something else."""


def fuse(optimizer: Optimizer, model: nn.Module) -> bool:
    """Let the optimizer update all parameters in one kernel, unless the user chose a way himself.

    The kernel walks through memory as it lies, so a slice of a larger tensor is left to the others; and it takes no
    sparse gradients, which embeddings of the model may ask for.
    """
    if type(optimizer) not in FUSABLE:
        return False
    groups = optimizer.param_groups
    chosen = any(group.get("fused") is not None or group.get("foreach") is not None for group in groups)
    special = any(group.get("differentiable") or group.get("capturable") for group in groups)
    parameters = [parameter for group in groups for parameter in group["params"]]
    kinds = ("cpu",) if type(optimizer) is Adagrad else ("cpu", "cuda")
    fit = all(p.is_floating_point() and p.device.type in kinds and is_dense(p) for p in parameters)
    sparse = any(getattr(module, "sparse", False) is True for module in model.modules())
    if chosen or special or sparse or not fit:
        return False
    for group in groups:
        group["fused"] = True
    optimizer.defaults["fused"] = True
    return True


def seed_draws(device: str, *key: int, others: bool) -> None:
    """Random draws of a step depend on seed, step and rank alone: a resumed run draws what it would have drawn.

    Those of torch; with `others` also NumPy's and Python's: 10 microseconds, most of them Python's.
    """
    (bits,) = random_bits(1, "draws", *key)
    if others:
        begin_others(int(bits))
    torch.default_generator.manual_seed(int(bits) >> 1)
    if device != "cpu":
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(int(bits) >> 1)


def lay_out(model: nn.Module, layout: str) -> nn.Module:
    """Images with their channels last, where `layout` says so; `auto`: on GPUs, for models with 2-D convolutions."""
    if layout == "auto":
        on_gpu = any(parameter.is_cuda for parameter in model.parameters())
        layout = "channels_last" if on_gpu and _convolves(model) else "contiguous"
    if layout == "channels_last":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def _convolves(model: nn.Module) -> bool:
    return any(isinstance(module, nn.Conv2d) for module in model.modules())


def training_loss(job: Job, model: nn.Module, plan: Plan, *, alone: bool) -> Callable[[Batch], Tensor]:
    """The loss of a batch, compiled if asked for: model and loss together where the job gives them apart."""
    if not plan.compile:
        return lambda batch: job.compute(model, batch)[0]
    loss = job.loss
    on_gpu = any(parameter.is_cuda for parameter in model.parameters())
    mode = "reduce-overhead" if on_gpu and replays(plan, alone=alone, apart=loss is not None) else None
    if loss is None:
        model.compile(mode=mode)
        return _explained(lambda batch: job.compute(model, batch)[0])
    whole = torch.compile(lambda x, y: loss(model(x), y), mode=mode)
    return _explained(lambda batch: whole(batch.x, batch.y))


def replays(plan: Plan, *, alone: bool, apart: bool) -> bool:
    """Whether a GPU replays the kernels of a step as CUDA graphs.

    By itself only where we know who sees what lies in a graph's memory: a worker `alone`, whose gradients nobody sends
    or adds up, and a loss `apart` from the model, so that no user's function keeps an output.
    """
    return plan.graphs == "true" or (plan.graphs == "auto" and alone and apart and plan.accumulate == 1)


def _explained(compute: Callable[[Batch], Any]) -> Callable[[Batch], Tensor]:
    last: tuple[int, int] | None = None

    def computed(batch: Batch) -> Tensor:
        nonlocal last
        if last != (batch.epoch, batch.step):  # what graphs gave in the last step is not needed any more
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        last = (batch.epoch, batch.step)
        try:
            result: Tensor = compute(batch)
        except Exception as error:
            if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                raise
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ModelError(
                f"the plan says compile=true, but torch.compile fails on this model: {first}. Leave compile out, or "
                "see what it cannot compile: https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html"
            ) from error
        return result

    return computed
