"""Run in a process of its own by `diagnose.number_format`: passes in a number format beside the same in fp32, timed.

An instruction that the processor lacks kills this process alone. It prints `fp32 works` and then
`{"speed": ...}`; an error is the last line of its standard error.
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
import signal
import statistics
import sys
import time

import torch
from torch import Tensor, nn

from cordee.diagnose.number_format import FP32_WORKS, UNSUPPORTED

ENOUGH_S = 1.0
"""Measure for about so long,"""
PAIRS = (5, 40)
"""but at least and at most so many pairs of passes,"""
TOO_LONG_S = 2.0
"""and after so long only the pair that is under way: an emulated format may take seconds for one pass."""
SCALE = 1024.0
"""The loss is scaled as a gradient scaler does: tiny fp16 gradients are denormal, and slow for that reason alone."""
NEAR = 0.1
"""The loss of a 16-bit format may differ by so much, relatively; beyond that it does not compute what it should."""

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def size_for(device: str, threads: int) -> tuple[int, int]:
    """Images and width: about 1 GFLOP per pass and thread on a CPU (25 ms), 1 TFLOP on a GPU.

    That is far above a kernel's fixed costs. With 16 threads and the work of two, threads only wait for each other.
    """
    return (64, 2048) if device == "cuda" else (4 * max(2, threads), 256)


class Bench:
    """A model and its input on a device, made from a fixed seed, so that every format computes the same."""

    def __init__(self, device: str) -> None:
        """The four kinds of layer that take most time in most models: convolution, attention, linear, norm."""
        self._device = torch.device(device)
        count, width = size_for(self._device.type, torch.get_num_threads())
        torch.manual_seed(0)
        self._model = nn.Sequential(  # (count, 16, 32, 32) → (count, 32, 32, 32) → (count, 32 tokens, width)
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()),
            *(nn.Flatten(2), nn.Linear(1024, width)),
            nn.TransformerEncoderLayer(
                width, width // 64, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            ),
        ).to(self._device)
        self._images = torch.randn(count, 16, 32, 32).to(self._device)

    def run(self, precision: str) -> tuple[float, float]:
        """Seconds of one forward and backward pass (on a CPU: of processor time), and its loss."""
        self._model.zero_grad(set_to_none=True)
        # autocast refuses float32, and refuses float16 on a CPU before torch 2.10, switched off or not.
        dtype = DTYPES.get(precision)
        autocast = contextlib.nullcontext() if dtype is None else torch.autocast(self._device.type, dtype)
        began = self._clock()
        with autocast:
            loss: Tensor = self._model(self._images).float().square().mean() * SCALE
        loss.backward()  # type: ignore[no-untyped-call]
        return self._clock() - began, loss.item() / SCALE

    def finite(self) -> bool:
        """Whether every gradient of the last pass is a number."""
        return all(bool(one.grad.isfinite().all()) for one in self._model.parameters() if one.grad is not None)

    def _clock(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            return time.perf_counter()
        # Processor time of all threads, which do not spin (`number_format.QUIETLY`): on a busy machine the wall clock
        # measures other processes too, and gave a factor between 0.5 and 2.3 where this one gives 1.6 every time.
        return time.process_time()


def measure(precision: str, device: str) -> float:
    """How many times as fast as fp32 the format is: medians over passes of the two in turn."""
    bench = Bench(device)
    _, reference = bench.run("fp32")
    sys.stdout.write(FP32_WORKS + "\n")
    sys.stdout.flush()
    if precision == "bf16" and device.startswith("cuda") and not torch.cuda.is_bf16_supported():
        sys.stderr.write("this GPU has no bf16\n")
        sys.exit(UNSUPPORTED)
    began = time.perf_counter()
    _, loss = bench.run(precision)
    if not math.isfinite(loss) or not bench.finite() or abs(loss - reference) > NEAR * abs(reference):
        sys.exit(f"it computes wrong numbers: a loss of {loss:.4g} where fp32 gives {reference:.4g}")
    plain: list[float] = []
    other: list[float] = []
    least, most = PAIRS
    while len(other) < most:
        plain.append(bench.run("fp32")[0])
        other.append(bench.run(precision)[0])
        spent = time.perf_counter() - began
        if spent > TOO_LONG_S or (spent > ENOUGH_S and len(other) >= least):
            break
    plain += [bench.run("fp32")[0] for _ in range(len(plain), least)]  # cheap beside a format that is so slow
    return statistics.median(plain) / statistics.median(other)


def main() -> None:
    """`python -m cordee.diagnose.number_format_child PRECISION DEVICE THREADS SECONDS`."""
    precision, device, threads, seconds = sys.argv[1:]
    # A crash is expected here: no core file of it. The alarm ends a pass that hangs after the parent is gone.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(math.ceil(float(seconds)) + 5)
    torch.set_num_threads(int(threads))
    sys.stdout.write(json.dumps({"speed": measure(precision, device)}) + "\n")


if __name__ == "__main__":
    main()
