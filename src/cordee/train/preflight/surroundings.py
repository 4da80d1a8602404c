"""What holds around all passes of the preflight: random states kept, exact kernels, nothing compiled."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def uses_gpus() -> bool:
    """Whether this process has used a GPU."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """Leave the generators of torch (GPUs too), NumPy and Python as they were."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    devices = list(range(torch.cuda.device_count())) if uses_gpus() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)


@contextlib.contextmanager
def exact_kernels() -> Iterator[None]:
    """On GPUs: no TF32, and the same algorithm for the same shape."""
    if not uses_gpus():
        yield
        return
    settings = (
        (torch.backends.cudnn, "benchmark", False),
        (torch.backends.cudnn, "deterministic", True),
        (torch.backends.cudnn, "allow_tf32", False),
        (torch.backends.cuda.matmul, "allow_tf32", False),
        # After the older names: what a user set by one of these comes back as it was.
        (torch.backends.cudnn.conv, "fp32_precision", "ieee"),  # type: ignore[attr-defined]
        (torch.backends.cudnn.rnn, "fp32_precision", "ieee"),
        (torch.backends.cuda.matmul, "fp32_precision", "ieee"),
    )
    kept = []
    for owner, name, value in settings:
        with contextlib.suppress(AttributeError, RuntimeError):  # a mix of older and newer names cannot be read
            kept.append((owner, name, getattr(owner, name)))
        with contextlib.suppress(AttributeError, RuntimeError):
            setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in kept:
            with contextlib.suppress(AttributeError, RuntimeError):
                setattr(owner, name, value)


def eager() -> contextlib.AbstractContextManager[Any]:
    """What the user compiled runs as written in here; where nothing was compiled, nothing is imported."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def plain_attention() -> contextlib.AbstractContextManager[Any]:
    """Attention by the kernel whose dropout is an operator of its own."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen: contextlib.AbstractContextManager[Any] = sdpa_kernel(SDPBackend.MATH)
    return chosen
