"""What torch is able to do here, asked in a child process: its import alone can fail, crash or hang."""

from __future__ import annotations

import signal
import sys

import msgspec

from cordee.core.interpreter import python_module
from cordee.diagnose.child import Ended, run_child

ASK_S = 60.0
"""A first import from a network disk takes this long; a driver that hangs takes for ever."""


class TorchLook(msgspec.Struct, frozen=True):
    """What torch says of itself and of the devices."""

    version: str = ""
    cuda: str = ""
    """The CUDA version that it is built for; empty: for CPUs only."""
    gloo: bool = False
    nccl: bool = False
    gpus: tuple[tuple[str, int], ...] = ()
    """Name and bytes of memory of each."""
    cuda_problem: str = ""
    """Why there is no GPU, in torch's words."""
    problem: str = ""
    """Why torch could not be asked at all."""


def ask() -> TorchLook:
    """Start the child and read its answer."""
    return read(run_child(python_module("cordee.diagnose.torch_look"), timeout_s=ASK_S))


def read(ended: Ended) -> TorchLook:
    """The answer of a child that has ended."""
    return ended.answer(TorchLook) or TorchLook(problem=ended.words)


def look() -> TorchLook:
    """Import torch here and ask it."""
    import torch
    from torch import distributed

    gpus: tuple[tuple[str, int], ...] = ()
    cuda_problem = ""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        properties = [torch.cuda.get_device_properties(one) for one in range(torch.cuda.device_count())]
        gpus = tuple((one.name, one.total_memory) for one in properties)
    except Exception as error:  # a RuntimeError of the driver, an AssertionError of a build without CUDA
        cuda_problem = str(error)
    there = distributed.is_available()
    return TorchLook(
        str(torch.__version__),
        torch.version.cuda or "",
        there and distributed.is_gloo_available(),
        there and distributed.is_nccl_available(),
        gpus,
        cuda_problem,
    )


if __name__ == "__main__":
    signal.alarm(int(ASK_S) + 5)  # a driver that hangs must not keep this process when its parent is gone
    sys.stdout.write(msgspec.json.encode(look()).decode() + "\n")
