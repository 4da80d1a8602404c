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
    conv, rnn, matmul = torch.backends.cudnn.conv, torch.backends.cudnn.rnn, torch.backends.cuda.matmul  # type: ignore[attr-defined]
    settings: tuple[tuple[Any, str, Any], ...] = (
        (torch.backends.cudnn, "benchmark", False),
        (torch.backends.cudnn, "deterministic", True),
        (torch.backends.cudnn, "allow_tf32", False),
        (_MatmulPrecision(), "value", "highest"),
        # The newer names last: setting one of the older sets these too.
        *((one, "fp32_precision", "ieee") for one in (conv, rnn, matmul)),
    )
    kept = [(owner, name, _read(owner, name)) for owner, name, _ in settings]
    for owner, name, value in settings:
        _write(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in kept:
            _write(owner, name, value)


class _MatmulPrecision:
    """torch's older name for the precision of matrix products, as an attribute."""

    @property
    def value(self) -> str:
        return torch.get_float32_matmul_precision()

    @value.setter
    def value(self, value: str) -> None:
        torch.set_float32_matmul_precision(value)


def _read(owner: Any, name: str) -> Any:
    """None where a user's mix of older and newer names cannot be read."""
    try:
        return getattr(owner, name)
    except (AttributeError, RuntimeError):
        return None


def _write(owner: Any, name: str, value: Any) -> None:
    if value is not None:
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
