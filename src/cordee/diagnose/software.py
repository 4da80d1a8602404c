"""The doctor looks at the software: Python, packages, torch and what it finds, number formats, the warm server."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import socket
from collections.abc import Callable

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from cordee.core.words import plural
from cordee.diagnose.check import Check, error, ok, warning
from cordee.diagnose.machine import gib
from cordee.diagnose.number_format import NumberFormat, recall_format, try_format
from cordee.diagnose.torch_look import TorchLook

NOT_FOR_USERS = ("dev",)
"""Extras that only those who work on Cordée itself need."""
EXTRAS = {
    "bench": "for benchmarks against other systems",
    "docs": "to build these pages as a site",
    "metrics": "for metrics of torchmetrics",
    "tensorboard": "for `cordee report --tensorboard`",
}
"""What each extra is for."""

ConnectWarm = Callable[[Callable[[str], None]], socket.socket | None]
"""Given a function that takes the reason of a refusal: a connection to the warm server, or None."""


def check_python() -> Check:
    """The interpreter."""
    try:
        wanted = str(importlib.metadata.metadata("cordee").json.get("requires_python", ""))
    except importlib.metadata.PackageNotFoundError:  # the next check says so
        wanted = ""
    version = platform.python_version()
    if SpecifierSet(wanted).contains(version, prereleases=True):
        return ok("python", f"{platform.python_implementation()} {version}")
    return error("python", f"Python {version}", f"Cordée needs Python {wanted}: make an environment with that version.")


def check_packages() -> list[Check]:
    """What is installed of what Cordée needs, and of what it can use."""
    try:
        metadata = importlib.metadata.metadata("cordee")
    except importlib.metadata.PackageNotFoundError:
        state = "Cordée runs from a folder and is not installed, so its requirements are not known"
        return [warning("packages", state, "pip install the folder, then look again.")]
    extras = [one for one in metadata.get_all("Provides-Extra") or [] if one not in NOT_FOR_USERS]
    needed = group_requirements(metadata.get_all("Requires-Dist") or [], extras)
    installed = {}
    for name in {one.name for group in needed.values() for one in group}:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return judge_packages(needed, installed)


def group_requirements(texts: list[str], extras: list[str]) -> dict[str, list[Requirement]]:
    """What each extra adds on this Python, by its name; under the empty name what is always needed."""
    parsed = [Requirement(text) for text in texts]
    always = [one for one in parsed if one.marker is None or one.marker.evaluate({"extra": ""})]
    more = [one for one in parsed if one.marker is not None and one not in always]
    return {"": always} | {
        extra: [one for one in more if one.marker and one.marker.evaluate({"extra": extra})] for extra in sorted(extras)
    }


def judge_packages(needed: dict[str, list[Requirement]], installed: dict[str, str]) -> list[Check]:
    """One line for what is always needed, one for each extra."""
    checks = []
    for extra, group in needed.items():
        versions = [(one, installed.get(one.name)) for one in group]
        missing = [one for one, version in versions if version is None]
        unfit = [one for one, version in versions if version and not one.specifier.contains(version, prereleases=True)]
        present = ", ".join(f"{one.name} {version}" for one, version in versions if version)
        absent = f"not installed: {', '.join(one.name for one in missing)}" if missing else ""
        found = "; ".join(filter(None, [present, absent]))
        name = f"optional: {extra}" if extra else "packages"
        wrong = [one for one in group if one in missing or one in unfit]
        fix = "pip install " + " ".join(f"'{one.name}{one.specifier}'" for one in wrong)
        if not wrong:
            checks.append(ok(name, found))
        elif not extra:
            checks.append(error(name, found, f"Cordée does not work without: {fix}"))
        elif not unfit:
            checks.append(ok(name, found, f"Only {EXTRAS.get(extra, 'if you want it')}: pip install 'cordee[{extra}]'"))
        else:
            checks.append(warning(name, found, f"Too old or too new: {fix}"))
    return checks


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


def judge_devices(look: TorchLook, there: int, visible: str | None = None) -> Check:
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
    if visible is not None:
        advice = f"CUDA_VISIBLE_DEVICES={visible} may name a GPU that is not there: unset it. {advice}"
    problem = look.cuda_problem or "it gives no reason"
    return error("devices", f"{count}, but torch cannot use them: {problem}", advice)


def check_formats(look: TorchLook, quick: bool) -> list[Check]:
    """Number formats, on a CPU and on the first GPU; measured, or with `quick` what is remembered."""
    if look.problem:
        return []
    places = ["cpu", "cuda:0"] if look.gpus else ["cpu"]
    checks = []
    for place in places:
        for precision in ("bf16", "fp16"):
            found = recall_format(precision, place) if quick else try_format(precision, place, fresh=True)
            checks.append(judge_format(f"{precision} on {place}", found))
    return checks


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


def check_warm_server(connect: ConnectWarm) -> Check:
    """Whether workers start from a process that is ready."""
    refused: list[str] = []
    server = connect(refused.append)
    if refused:
        return warning("warm server", refused[0], "Runs begin without one, some seconds later.")
    if server is None:
        return ok("warm server", "not running", "`cordee warm` makes the next runs start in milliseconds.")
    server.close()
    return ok("warm server", "running")
