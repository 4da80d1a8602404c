"""What makes a device compute faster and changes no result but its rounding: fused updates, layout; and its draws."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from cordee.feed.permute import random_bits
from cordee.feed.reading import begin_others
from cordee.group.sliced import local_of
from cordee.sync.buckets import is_dense

_BUILD = {"torch": str(torch.__version__)}
FUSABLE = (Adam, AdamW, SGD, Adagrad)
"""PyTorch's optimizers with one kernel for all parameters; subclasses may do something else."""


def fuse(optimizer: Optimizer, model: nn.Module) -> bool:
    """Let the optimizer update all parameters in one kernel, unless the user chose a way himself.

    The kernel walks through memory as it lies, and takes no sparse gradients, which embeddings may ask for.
    """
    groups = optimizer.param_groups
    kinds = ("cpu",) if type(optimizer) is Adagrad else ("cpu", "cuda")
    parameters = [parameter for group in groups for parameter in group["params"]]
    chosen = any(group.get("fused") is not None or group.get("foreach") is not None for group in groups)
    special = any(group.get("differentiable") or group.get("capturable") for group in groups)
    sparse = any(getattr(module, "sparse", False) is True for module in model.modules())
    fit = all(p.is_floating_point() and p.device.type in kinds and is_dense(local_of(p)) for p in parameters)
    if type(optimizer) not in FUSABLE or chosen or special or sparse or not fit:
        return False
    for group in groups:
        group["fused"] = True
    optimizer.defaults["fused"] = True
    return True


def compute_alike() -> None:
    """From now on, let torch take the same way through memory each time, and refuse operations that cannot."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS is refused; read when it is first used
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # it costs time
    torch.backends.cudnn.benchmark = False


def conditions(pieces: int, device: str) -> dict[str, Any]:
    """What results of exact=true depend on beside job and plan; all in words and numbers."""
    on_gpu = torch.cuda.get_device_name(device) if device != "cpu" else "cpu"
    isa = torch.backends.cpu.get_cpu_capability()
    return {"pieces": pieces, "device": on_gpu, "instructions": isa, "threads": torch.get_num_threads(), **_BUILD}


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
        convolves = any(isinstance(module, nn.Conv2d) for module in model.modules())
        on_gpu = any(parameter.is_cuda for parameter in model.parameters())
        layout = "channels_last" if on_gpu and convolves else "contiguous"
    if layout == "channels_last":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model
