"""Does a number format work on this device, and is it faster than fp32? Measured in a child process, and remembered.

In a child, because a processor may promise an instruction that kills the process that uses it: virtual machines on
Intel processors with AMX are known for it, where bf16 works only after oneDNN was told to leave AMX alone.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from pathlib import Path

import msgspec
from msgspec.structs import replace

from cordee.core.errors import UsageError
from cordee.core.interpreter import python_module
from cordee.core.machine import usable_cores
from cordee.diagnose import cache
from cordee.diagnose.child import Ended, run_child

MEASURE = "3"
"""Counted up when the way of measuring changes, so that what was measured otherwise is forgotten."""
PRECISIONS = ("bf16", "fp16")
FP32_WORKS = "fp32 works"
"""The child's first word: what fails later is the format's doing."""
UNSUPPORTED = 3
"""The child's exit code when the device does not know the format at all."""

REMEDIES: dict[str, tuple[dict[str, str], ...]] = {
    "bf16": ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},),
    "fp16": ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}),
}
"""Variables under which a format that crashed a CPU may work; oneDNN reads them when torch is loaded."""

QUIETLY = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
"""Threads of the child that wait do not burn processor time, which is what it measures."""

NOTABLE = 1.05
"""A smaller factor than this is within the noise of the measurement."""


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
    """How the child ended that tried it without these variables, in words."""

    @property
    def sentence(self) -> str:
        """What a user should know, with the choice that follows from it."""
        where = "this CPU" if self.device == "cpu" else self.device
        if not self.works:
            return f"{self.precision} does not work on {where}: {self.reason}; precision=fp32 remains"
        if not self.environment:
            return f"{self.precision} on {where} works and {_pace(self.precision, self.speed)}"
        variables = " ".join(f"{name}={value}" for name, value in self.environment.items())
        return (
            f"{self.precision} crashes {where}'s oneDNN ({self.reason}) unless {variables} is set before the start; "
            f"with it, it works and {_pace(self.precision, self.speed)}"
        )


class _Remembered(msgspec.Struct):
    """What the cache holds of a trial."""

    key: dict[str, str]
    found: NumberFormat


def _pace(precision: str, speed: float) -> str:
    """How fast it is, and which format to take."""
    if speed >= NOTABLE:
        return f"is {_times(speed)} times as fast as fp32: precision={precision} is the faster choice"
    if speed * NOTABLE <= 1:
        return f"takes {_times(1 / speed)} times as long as fp32: precision=fp32 is the faster choice"
    return f"takes as long as fp32: precision={precision} saves memory, not time"


def _times(factor: float) -> str:
    return f"{factor:.1f}" if factor < 10 else f"{factor:.0f}"


def try_format(
    precision: str, device: str = "cpu", *, threads: int | None = None, timeout_s: float = 60.0, fresh: bool = False
) -> NumberFormat:
    """Try a number format on `cpu` or `cuda:N` with so many threads (default: one per usable core).

    What was found is remembered in the user's cache folder; `fresh` measures anew.
    """
    if not fresh and (remembered := recall_format(precision, device, threads=threads)) is not None:
        return remembered
    found, settled = _try_all(precision, device, threads or len(usable_cores()), timeout_s)
    key = _key(precision, device, threads)
    if settled and key["hardware"]:
        cache.store(_file(key), _Remembered(key, found))
    return found


def recall_format(precision: str, device: str = "cpu", *, threads: int | None = None) -> NumberFormat | None:
    """What an earlier trial found; None if there was none, or it cannot be read. Measures nothing."""
    key = _key(precision, device, threads)
    remembered = cache.recall(_file(key), _Remembered)
    # The whole key is compared, so that a file never speaks for another machine.
    return remembered.found if remembered is not None and remembered.key == key else None


def command(precision: str, device: str, threads: int, timeout_s: float) -> list[str]:
    """The command of the child that tries a format."""
    return python_module("cordee.diagnose.number_format_child", precision, device, str(threads), str(timeout_s))


def judge(precision: str, device: str, ended: Ended) -> NumberFormat:
    """What the end of one child says about the format."""
    speed = (ended.answer(dict[str, float]) or {}).get("speed", 0.0)
    if speed > 0:
        return NumberFormat(precision, device, True, speed, reason=ended.words)
    reason = ended.failure
    if FP32_WORKS not in ended.output.splitlines() and ended.code != UNSUPPORTED:
        reason = f"not even fp32 could be computed: {reason}"
    return NumberFormat(precision, device, False, 0.0, reason=reason)


def _try_all(precision: str, device: str, threads: int, timeout_s: float) -> tuple[NumberFormat, bool]:
    """Without variables first, then with each that may help; and whether another look would find the same."""
    line = command(precision, device, threads, timeout_s)
    ended = run_child(line, timeout_s=timeout_s, environment=QUIETLY)
    first = judge(precision, device, ended)
    remedies = REMEDIES[precision] if device == "cpu" and ended.killed_by in ("SIGILL", "SIGSEGV", "SIGBUS") else ()
    for environment in remedies:
        again = judge(precision, device, run_child(line, timeout_s=timeout_s, environment={**QUIETLY, **environment}))
        if again.works:
            return replace(again, environment=environment, reason=first.reason), True
    if remedies:
        tried = " or ".join(f"{name}={value}" for one in remedies for name, value in one.items())
        first = replace(first, reason=f"{first.reason}, and no better with {tried}")
    # Out of memory, a busy GPU, a deadline: another time it may work.
    return first, first.works or ended.killed_by == "SIGILL" or ended.code == UNSUPPORTED


def _key(precision: str, device: str, threads: int | None) -> dict[str, str]:
    """Everything that a measurement depends on."""
    if precision not in PRECISIONS:
        raise UsageError(f"precision {precision!r}: expected one of {', '.join(PRECISIONS)}")
    if device != "cpu" and not (device.startswith("cuda:") and device[5:].isdigit()):
        raise UsageError(f"device {device!r}: expected cpu or cuda:N, such as cuda:0")
    if threads is not None and threads < 1:
        raise UsageError(f"threads {threads}: at least 1 is needed")
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = ""
    return {
        "precision": precision,
        "device": device,
        "threads": str(threads or len(usable_cores())),
        "variable": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
        "measure": MEASURE,
        "torch": torch,
        "kernel": os.uname().release,
        "hardware": processor(_text(Path("/proc/cpuinfo"))) if device == "cpu" else _graphics(),
    }


def _file(key: dict[str, str]) -> str:
    """One small file per machine, format and setting."""
    return f"format-{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]}"


def processor(cpuinfo: str) -> str:
    """Model and flags of the first processor of /proc/cpuinfo; ARM calls them by other names."""
    wanted = ("model name", "cpu family", "model", "flags", "features", "cpu implementer", "cpu part")
    pairs = (line.partition(":") for line in cpuinfo.split("\n\n")[0].splitlines())
    return "\n".join(f"{name.strip()}: {value.strip()}" for name, _, value in pairs if name.strip().lower() in wanted)


def _graphics() -> str:
    """The GPUs of this host and their driver; nothing is loaded to find out, and nothing is known without the files."""
    driver = Path("/proc/driver/nvidia")
    texts = [_text(file) for file in sorted(driver.glob("gpus/*/information"))]
    models = [line[6:].strip() for text in texts for line in text.splitlines() if line.startswith("Model:")]
    visible = f"visible: {os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}"
    return "\n".join([*models, _text(driver / "version").partition("\n")[0], visible]) if models else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
