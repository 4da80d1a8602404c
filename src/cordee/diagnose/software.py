"""The doctor looks at the software: packages, torch and the devices that it finds, number formats.

Run as a program this module asks torch, whose import alone can fail, crash or hang; only there torch is loaded.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import signal
import sys
from functools import partial

import msgspec
from packaging.requirements import Requirement

from cordee.core.interpreter import python_module
from cordee.core.words import plural
from cordee.diagnose.check import Check
from cordee.diagnose.child import run_child
from cordee.diagnose.machine import gib
from cordee.diagnose.number_format import PRECISIONS, NumberFormat, recall_format, try_format

ASK_S = 60.0
"""A first import of torch from a network disk takes this long; a driver that hangs takes for ever."""


def check_packages() -> Check:
    """What is installed of what Cordée needs; an error if a package is missing, too old or too new."""
    parts, wrong = [f"{platform.python_implementation()} {platform.python_version()}"], []
    for one in map(Requirement, importlib.metadata.requires("cordee") or []):
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(one.name)
        except importlib.metadata.PackageNotFoundError:
            version = ""
        parts.append(f"{one.name} {version or 'is not installed'}")
        if not version or not one.specifier.contains(version, prereleases=True):
            wrong.append(f"'{one.name}{one.specifier}'")
    if not wrong:
        return Check("packages", "ok", ", ".join(parts))
    return Check("packages", "error", ", ".join(parts), f"Cordée does not work without: pip install {' '.join(wrong)}")


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


def ask_torch() -> TorchLook:
    """What torch is able to do here, from a child process."""
    ended = run_child(python_module("cordee.diagnose.software"), timeout_s=ASK_S)
    return ended.answer(TorchLook) or TorchLook(problem=ended.words)


def look_at_torch() -> TorchLook:
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


def judge_torch(look: TorchLook) -> Check:
    """Which torch it is, and which collectives it brings."""
    if look.problem:
        return Check(
            "torch", "error", f"it cannot be loaded: {look.problem}", "Reinstall torch, in a build for this machine."
        )
    build = f"built for CUDA {look.cuda}" if look.cuda else "built for CPUs"
    collectives = f"{'gloo' if look.gloo else 'no gloo'}, {'NCCL' if look.nccl else 'no NCCL'}"
    found = f"{look.version}, {build}; {collectives}"
    if not look.gloo:
        return Check("torch", "error", found, "Workers agree over gloo: install a torch build that has it.")
    return Check("torch", "ok", found)


def judge_devices(look: TorchLook, there: int) -> Check:
    """What torch sees, beside the number of NVIDIA device files that this process may use."""
    if look.gpus:
        names = ", ".join(f"cuda:{number} {name} ({gib(size)})" for number, (name, size) in enumerate(look.gpus))
        if len(look.gpus) > 1 and not look.nccl:
            return Check("devices", "warning", names, "Several GPUs without NCCL agree over gloo, which is slower.")
        return Check("devices", "ok", names)
    if look.problem:
        return Check("devices", "warning", "not checked, since torch cannot be loaded", "Fix torch first.")
    if not there:
        return Check("devices", "ok", "CPU only")
    count = plural(there, "NVIDIA GPU")
    if not look.cuda:
        fix = "Install a torch build for CUDA, or give --device cpu."
        return Check("devices", "error", f"{count}, but this torch is built for CPUs", fix)
    advice = "Compare the driver that nvidia-smi names with the CUDA version of torch, or give --device cpu."
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        advice = f"CUDA_VISIBLE_DEVICES={visible} may name a GPU that is not there: unset it. {advice}"
    problem = look.cuda_problem or "it gives no reason"
    return Check("devices", "error", f"{count}, but torch cannot use them: {problem}", advice)


def check_formats(look: TorchLook, quick: bool) -> list[Check]:
    """Number formats, on a CPU and on the first GPU; measured, or with `quick` what is remembered."""
    if look.problem:
        return []
    ask = recall_format if quick else partial(try_format, fresh=True)
    places = ["cpu", "cuda:0"] if look.gpus else ["cpu"]
    pairs = [(precision, place) for place in places for precision in PRECISIONS]
    return [judge_format(f"{precision} on {place}", ask(precision, place)) for precision, place in pairs]


def judge_format(name: str, found: NumberFormat | None) -> Check:
    """A format that does not work is no error: fp32 is the default."""
    if found is None:
        return Check(name, "ok", "not measured yet", "Leave out --quick to measure it.")
    if not found.works:
        return Check(name, "warning", found.sentence, "Stay with precision=fp32 here.")
    if found.environment:
        variables = " ".join(f"{key}={value}" for key, value in found.environment.items())
        return Check(name, "warning", found.sentence, f"Before the start: export {variables}")
    return Check(name, "ok", found.sentence)


if __name__ == "__main__":
    signal.alarm(int(ASK_S) + 5)  # a driver that hangs must not keep this process when its parent is gone
    sys.stdout.write(msgspec.json.encode(look_at_torch()).decode() + "\n")
