"""What holds around all passes of the preflight: exact kernels, nothing compiled."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch


def uses_gpus() -> bool:
    """Whether this process has used a GPU."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def exact_kernels() -> Iterator[None]:
    """On GPUs: no TF32, and the same algorithm for the same shape."""
    if not uses_gpus():
        yield
        return
    cudnn: Any = torch.backends.cudnn
    attributes = [(cudnn, "benchmark", False), (cudnn, "deterministic", True), (cudnn, "allow_tf32", False)]
    # The newer names last: setting one of the older sets these too.
    newer: list[tuple[Any, str, Any]] = [
        (one, "fp32_precision", "ieee") for one in (cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul)
    ]
    settings: list[tuple[Callable[[], Any], Callable[[Any], None], Any]] = [
        *((partial(getattr, *at), partial(setattr, *at), value) for *at, value in attributes),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"),
        *((partial(getattr, *at), partial(setattr, *at), value) for *at, value in newer),
    ]
    before = []
    for read, write, _ in settings:
        with _MIXED_NAMES:
            before.append((write, read()))
    try:
        for _, write, value in settings:
            with _MIXED_NAMES:
                write(value)
        yield
    finally:
        for write, value in before:
            with _MIXED_NAMES:
                write(value)


_MIXED_NAMES = contextlib.suppress(AttributeError, RuntimeError)
"""Where a user's mix of older and newer names cannot be read or set."""


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
