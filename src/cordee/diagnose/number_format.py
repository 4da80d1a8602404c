"""Does a number format work on this device, and is it faster than fp32? Measured in a child process, and remembered.

In a child, because a processor may promise an instruction that kills the process that uses it: virtual machines on
Intel processors with AMX are known for it, where bf16 works only after oneDNN was told to leave AMX alone. Run as a
program this module is that child; only there torch is loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import math
import os
import resource
import signal
import statistics
import sys
import time
from pathlib import Path

import msgspec
from msgspec.structs import replace

from cordee.core.interpreter import python_module
from cordee.core.machine import usable_cores
from cordee.diagnose import cache
from cordee.diagnose.child import Ended, run_child

MEASURE = "4"
"""Counted up when the way of measuring changes, so that what was measured otherwise is forgotten."""
PRECISIONS = ("bf16", "fp16")
TRIAL_S = 60.0

REMEDIES = tuple({"ONEDNN_MAX_CPU_ISA": one} for one in ("AVX512_CORE_FP16", "AVX512_CORE_BF16"))
"""Variables under which a format that crashed a CPU may work; oneDNN reads them when torch is loaded."""

QUIETLY = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
"""Threads of the child that wait do not burn processor time, which is what it measures."""

NOTABLE = 1.05
"""A smaller factor than this is within the noise of the measurement."""

# Of the child:
PAIRS = 5
"""Passes in fp32 and in the format, in turn; their medians are compared."""
TOO_LONG_S = 2.0
"""After so long only the pair that is under way: an emulated format may take seconds for one pass."""
SCALE = 1024.0
"""The loss is scaled as a gradient scaler does: tiny fp16 gradients are denormal, and slow for that reason alone."""
NEAR = 0.1
"""The loss of a 16-bit format may differ by so much, relatively; beyond that it does not compute what it should."""


class NumberFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of a number format on a device."""

    precision: str
    device: str
    works: bool
    speed: float
    """The time of fp32 over the time of this format: above 1 it is faster; 0 if it does not work."""
    environment: dict[str, str] = {}
    """Variables that must be set before torch is loaded; empty if it works without, or not at all."""
    reason: str = ""
    """How the child ended that tried it without these variables, in words; empty if that went well."""

    @property
    def sentence(self) -> str:
        """What a user should know, with the choice that follows from it."""
        where = "this CPU" if self.device == "cpu" else self.device
        if not self.works:
            return f"{self.precision} does not work on {where}: {self.reason}; precision=fp32 remains"
        if not self.environment:
            return f"{self.precision} on {where} works and {self._pace()}"
        variables = " ".join(f"{name}={value}" for name, value in self.environment.items())
        return (
            f"{self.precision} crashes {where}'s oneDNN ({self.reason}) unless {variables} is set before the start; "
            f"with it, it works and {self._pace()}"
        )

    def _pace(self) -> str:
        """How fast it is, and which format to take."""
        if self.speed >= NOTABLE:
            return f"is {self.speed:.1f} times as fast as fp32: precision={self.precision} is the faster choice"
        if self.speed * NOTABLE <= 1:
            return f"takes {1 / self.speed:.1f} times as long as fp32: precision=fp32 is the faster choice"
        return f"takes as long as fp32: precision={self.precision} saves memory, not time"


def try_format(
    precision: str, device: str = "cpu", *, threads: int | None = None, timeout_s: float = TRIAL_S, fresh: bool = False
) -> NumberFormat:
    """Try a number format on `cpu` or `cuda:N` with so many threads (default: one per usable core).

    What was found is remembered in the user's cache folder; `fresh` measures anew.
    """
    threads = threads or len(usable_cores())
    if not fresh and (remembered := recall_format(precision, device, threads=threads)) is not None:
        return remembered
    line = command(precision, device, threads)
    ended = run_child(line, timeout_s=timeout_s, environment=QUIETLY)
    found = judge(precision, device, ended)
    remedies = REMEDIES if device == "cpu" and ended.killed_by in ("SIGILL", "SIGSEGV", "SIGBUS") else ()
    for environment in remedies:
        again = judge(precision, device, run_child(line, timeout_s=timeout_s, environment={**QUIETLY, **environment}))
        if again.works:
            found = replace(again, environment=environment, reason=found.reason)
            break
    # Out of memory, a busy GPU, a deadline: another time it may work.
    if found.works or ended.killed_by == "SIGILL":
        cache.store(_file(precision, device, threads), found)
    return found


def recall_format(precision: str, device: str = "cpu", *, threads: int | None = None) -> NumberFormat | None:
    """What an earlier trial found; None if there was none, or it cannot be read. Measures nothing."""
    return cache.recall(_file(precision, device, threads or len(usable_cores())), NumberFormat)


def command(precision: str, device: str, threads: int) -> list[str]:
    """The command of the child that tries a format."""
    return python_module("cordee.diagnose.number_format", precision, device, str(threads))


def judge(precision: str, device: str, ended: Ended) -> NumberFormat:
    """What the end of one child says about the format."""
    speed = ended.answer(float) or 0.0
    return NumberFormat(precision, device, speed > 0, speed, reason="" if speed > 0 else ended.words)


def _file(precision: str, device: str, threads: int) -> str:
    """One small file for everything that a measurement depends on: machine, format and setting."""
    versions = [MEASURE, importlib.metadata.version("torch"), os.uname().release]
    if device == "cpu":
        hardware, variable = processor(), "ONEDNN_MAX_CPU_ISA"
    else:  # nothing is loaded to ask a GPU
        hardware, variable = os.uname().nodename, "CUDA_VISIBLE_DEVICES"
    key = [precision, device, str(threads), os.environ.get(variable, ""), *versions, hardware]
    return f"format-{hashlib.sha256(json.dumps(key).encode()).hexdigest()}"


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What the kernel says of the first processor, without what changes by the second."""
    lines = cpuinfo.read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    return "\n".join(line for line in lines if not line.lower().startswith(("processor", "cpu mhz", "bogomips")))


# ------------------------------------------------------------- the child


def measure(precision: str, device: str) -> float:
    """How many times as fast as fp32 the format is: medians over passes of the two in turn.

    Of the four kinds of layer that take most time in most models: convolution, attention, linear, norm. About 1 GFLOP
    per pass and thread on a CPU (25 ms), 1 TFLOP on a GPU, which is far above a kernel's fixed costs. With 16 threads
    and the work of two, threads only wait for each other.
    """
    import torch
    from torch import nn

    count, width = (4 * max(2, torch.get_num_threads()), 256) if device == "cpu" else (64, 2048)
    torch.manual_seed(0)
    model = nn.Sequential(  # (count, 16, 32, 32) → (count, 32, 32, 32) → (count, 32 tokens, width)
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()),
        *(nn.Flatten(2), nn.Linear(1024, width)),
        nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        ),
    ).to(device)
    images = torch.randn(count, 16, 32, 32).to(device)
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}

    def clock() -> float:
        if device == "cpu":
            # Processor time of all threads, which do not spin (`QUIETLY`): on a busy machine the wall clock measures
            # other processes too, and gave a factor between 0.5 and 2.3 where this one gives 1.6 every time.
            return time.process_time()
        torch.cuda.synchronize(device)
        return time.perf_counter()

    def run(one: str) -> tuple[float, float]:
        """Seconds of one forward and backward pass, and its loss, NaN if a gradient is."""
        model.zero_grad(set_to_none=True)
        autocast = torch.autocast(torch.device(device).type, dtypes[one]) if one in dtypes else contextlib.nullcontext()
        began = clock()
        with autocast:
            loss = model(images).float().square().mean() * SCALE
        loss.backward()
        spent = clock() - began
        finite = all(bool(weight.grad.isfinite().all()) for weight in model.parameters() if weight.grad is not None)
        return spent, loss.item() / SCALE if finite else math.nan

    _, reference = run("fp32")
    began = time.perf_counter()
    _, loss = run(precision)
    if not abs(loss - reference) <= NEAR * abs(reference):
        sys.exit(f"it computes wrong numbers: a loss of {loss:.4g} where fp32 gives {reference:.4g}")
    times: dict[str, list[float]] = {"fp32": [], precision: []}
    while len(times[precision]) < PAIRS:
        for one, seconds in times.items():
            seconds.append(run(one)[0])
        if time.perf_counter() - began > TOO_LONG_S:
            break
    return statistics.median(times["fp32"]) / statistics.median(times[precision])


def main() -> None:
    """`python -m cordee.diagnose.number_format PRECISION DEVICE THREADS`: prints the factor."""
    import torch

    precision, device, threads = sys.argv[1:]
    # A crash is expected here: no core file of it. The alarm ends a pass that hangs after the parent is gone.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(round(TRIAL_S) + 5)
    torch.set_num_threads(int(threads))
    sys.stdout.write(f"{measure(precision, device)}\n")


if __name__ == "__main__":
    main()
