"""The doctor looks at the software: packages, torch and the devices that it finds, number formats."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from functools import partial

from packaging.requirements import Requirement

from cordee.core.words import plural
from cordee.diagnose.check import Check, error, ok, warning
from cordee.diagnose.machine import gib
from cordee.diagnose.number_format import PRECISIONS, NumberFormat, recall_format, try_format
from cordee.diagnose.torch_look import TorchLook


def check_packages() -> Check:
    """What is installed of what Cordée needs."""
    needed = [Requirement(text) for text in importlib.metadata.requires("cordee") or []]
    always = [one for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    installed = {}
    for one in always:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[one.name] = importlib.metadata.version(one.name)
    return judge_packages(always, installed)


def judge_packages(needed: list[Requirement], installed: dict[str, str]) -> Check:
    """The versions; an error if a package is missing, too old or too new."""
    there = [one for one in needed if one.name in installed]
    right = [one for one in there if one.specifier.contains(installed[one.name], prereleases=True)]
    parts = [f"{one.name} {installed.get(one.name, 'is not installed')}" for one in needed]
    found = f"{platform.python_implementation()} {platform.python_version()}, {', '.join(parts)}"
    if len(right) == len(needed):
        return ok("packages", found)
    fix = "pip install " + " ".join(f"'{one.name}{one.specifier}'" for one in needed if one not in right)
    return error("packages", found, f"Cordée does not work without: {fix}")


def judge_torch(look: TorchLook) -> Check:
    """Which torch it is, and which collectives it brings."""
    if look.problem:
        return error("torch", f"it cannot be loaded: {look.problem}", "Reinstall torch, in a build for this machine.")
    build = f"built for CUDA {look.cuda}" if look.cuda else "built for CPUs"
    collectives = f"{'gloo' if look.gloo else 'no gloo'}, {'NCCL' if look.nccl else 'no NCCL'}"
    found = f"{look.version}, {build}; {collectives}"
    if not look.gloo:
        return error("torch", found, "Workers agree over gloo: install a torch build that has it.")
    return ok("torch", found)


def judge_devices(look: TorchLook, there: int) -> Check:
    """What torch sees, beside the number of NVIDIA device files that this process may use."""
    if look.gpus:
        names = ", ".join(f"cuda:{number} {name} ({gib(size)})" for number, (name, size) in enumerate(look.gpus))
        if len(look.gpus) > 1 and not look.nccl:
            return warning("devices", names, "Several GPUs without NCCL agree over gloo, which is slower.")
        return ok("devices", names)
    if look.problem:
        return warning("devices", "not checked, since torch cannot be loaded", "Fix torch first.")
    if not there:
        return ok("devices", "CPU only")
    count = plural(there, "NVIDIA GPU")
    if not look.cuda:
        fix = "Install a torch build for CUDA, or give --device cpu."
        return error("devices", f"{count}, but this torch is built for CPUs", fix)
    advice = "Compare the driver that nvidia-smi names with the CUDA version of torch, or give --device cpu."
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        advice = f"CUDA_VISIBLE_DEVICES={visible} may name a GPU that is not there: unset it. {advice}"
    problem = look.cuda_problem or "it gives no reason"
    return error("devices", f"{count}, but torch cannot use them: {problem}", advice)


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
        return ok(name, "not measured yet", "Leave out --quick to measure it.")
    if not found.works:
        return warning(name, found.sentence, "Stay with precision=fp32 here.")
    if found.environment:
        variables = " ".join(f"{key}={value}" for key, value in found.environment.items())
        return warning(name, found.sentence, f"Before the start: export {variables}")
    return ok(name, found.sentence)
