"""The doctor looks at the software: Python, packages, torch and what it finds, number formats, the warm server."""

from __future__ import annotations

import importlib.metadata
import operator
import os
import platform
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cordee.core.words import plural
from cordee.runtime.check import Check, error, ok, warning
from cordee.runtime.doctor_machine import gib
from cordee.runtime.probe import Probe, known, probe
from cordee.runtime.resources import gpus
from cordee.runtime.torch_look import TorchLook

NOT_FOR_USERS = ("dev",)
"""Extras that only those who work on Cordée itself need."""
EXTRAS = {
    "bench": "for benchmarks against other systems",
    "docs": "to build these pages as a site",
    "metrics": "for metrics of torchmetrics",
    "tensorboard": "for `cordee report --tensorboard`",
}
"""What each extra is for."""

_COMPARE: dict[str, Callable[[list[int], list[int]], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True)
class Requirement:
    """A package that Cordée, or one of its extras, needs."""

    package: str
    versions: str
    """Such as `>=2.10,<3`; empty: any."""
    extra: str
    """Empty: always needed."""

    @classmethod
    def parse(cls, text: str) -> Requirement | None:
        """From the package's metadata, such as `numpy>=1.26; extra == 'x'`; None if it is for another Python."""
        head, _, marker = text.partition(";")
        named = re.match(r"\s*([\w.-]+)\s*(?:\[[^\]]*\])?\s*\(?([^)]*)\)?", head)
        if named is None:
            return None
        extra = re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", marker)
        python = re.search(r"python_version\s*([<>=!]+)\s*['\"]([\d.]+)['\"]", marker)
        if python and not satisfies(platform.python_version(), python[1] + python[2]):
            return None
        return cls(named[1], named[2].replace(" ", ""), extra[1] if extra else "")

    def __str__(self) -> str:
        return self.package + self.versions


def satisfies(version: str, wanted: str) -> bool:
    """Whether a version such as `2.13.0+cpu` is among `>=2.10,<3`; what we cannot read is let pass."""
    for one in filter(None, wanted.split(",")):
        parsed = re.match(r"([<>=!]=|[<>])\s*(\d+(?:\.\d+)*)$", one.strip())
        if parsed is None:
            continue
        bound = [int(number) for number in parsed[2].split(".")]
        mine = [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]
        length = max(len(bound), len(mine))  # 2.10 and 2.10.0 are the same
        if not _COMPARE[parsed[1]](mine + [0] * (length - len(mine)), bound + [0] * (length - len(bound))):
            return False
    return True


def python() -> Check:
    """The interpreter."""
    try:
        wanted = str(importlib.metadata.metadata("cordee").json.get("requires_python", ""))
    except importlib.metadata.PackageNotFoundError:  # the next check says so
        wanted = ""
    version = platform.python_version()
    if satisfies(version, wanted):
        return ok("python", f"{platform.python_implementation()} {version}")
    return error("python", f"Python {version}", f"Cordée needs Python {wanted}: make an environment with such a one.")


def packages() -> list[Check]:
    """What is installed of what Cordée needs, and of what it can use."""
    try:
        texts = importlib.metadata.requires("cordee") or []
    except importlib.metadata.PackageNotFoundError:
        found = "Cordée runs from a folder and is not installed, so nobody knows what it needs"
        return [warning("packages", found, "pip install the folder, then look again.")]
    parsed = (Requirement.parse(text) for text in texts)
    needed = [one for one in parsed if one is not None and one.extra not in NOT_FOR_USERS]
    return judge_packages(needed, installed(one.package for one in needed))


def installed(names: Iterable[str]) -> dict[str, str]:
    """The versions of those packages that are there."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def judge_packages(needed: list[Requirement], there: dict[str, str]) -> list[Check]:
    """One line for what is always needed, one for each extra."""
    checks = []
    for extra in sorted({one.extra for one in needed}):
        mine = [one for one in needed if one.extra == extra]
        found = _installed(mine, there)
        wrong = [one for one in mine if one.package not in there or not satisfies(there[one.package], one.versions)]
        name = f"optional: {extra}" if extra else "packages"
        fix = "pip install " + " ".join(f"'{one}'" for one in wrong)
        if not wrong:
            checks.append(ok(name, found))
        elif not extra:
            checks.append(error(name, found, f"Cordée does not work without: {fix}"))
        elif all(one.package not in there for one in wrong):
            checks.append(ok(name, found, f"Only {EXTRAS.get(extra, 'if you want it')}: pip install 'cordee[{extra}]'"))
        else:
            checks.append(warning(name, found, f"Too old or too new: {fix}"))
    return checks


def _installed(mine: list[Requirement], there: dict[str, str]) -> str:
    """What is there with its version, and then what is not."""
    found = ", ".join(f"{one.package} {there[one.package]}" for one in mine if one.package in there)
    missing = ", ".join(one.package for one in mine if one.package not in there)
    return "; ".join(filter(None, [found, f"not installed: {missing}" if missing else ""]))


def judge_torch(look: TorchLook) -> Check:
    """Which torch it is, and which collectives it brings."""
    if look.problem:
        return error(
            "torch", f"it cannot be loaded: {look.problem}", "Install torch anew, in a build for this machine."
        )
    build = f"built for CUDA {look.cuda}" if look.cuda else "built for CPUs"
    collectives = f"{'gloo' if look.gloo else 'no gloo'}, {'NCCL' if look.nccl else 'no NCCL'}"
    found = f"{look.version}, {build}; {collectives}"
    if not look.gloo:
        return error("torch", found, "Workers agree over gloo: install a torch build that has it.")
    return ok("torch", found)


def devices(look: TorchLook) -> Check:
    """The devices that workers can compute on."""
    return judge_devices(look, gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def judge_devices(look: TorchLook, there: int, visible: str | None = None) -> Check:
    """What torch sees, beside the number of NVIDIA device files that this process may use."""
    if look.gpus:
        names = ", ".join(f"cuda:{number} {name} ({gib(size)})" for number, (name, size) in enumerate(look.gpus))
        if len(look.gpus) > 1 and not look.nccl:
            return warning("devices", names, "Several GPUs without NCCL agree over gloo, which is slower.")
        return ok("devices", names)
    if look.problem:
        return warning("devices", "not checked, since torch cannot be loaded", "Mend torch first.")
    if not there:
        return ok("devices", "CPU only")
    count = plural(there, "NVIDIA GPU")
    if not look.cuda:
        return error(
            "devices",
            f"{count}, but this torch is built for CPUs",
            "Install a torch build for CUDA, or say --device cpu.",
        )
    advice = "Compare the driver that nvidia-smi names with the CUDA version of torch, or say --device cpu."
    if visible is not None:
        advice = f"CUDA_VISIBLE_DEVICES={visible} may name a GPU that is not there: unset it. {advice}"
    problem = look.cuda_problem or "it does not say why"
    return error("devices", f"{count}, but torch cannot use what there is: {problem}", advice)


def formats(look: TorchLook, quick: bool) -> list[Check]:
    """Number formats, on a CPU and on the first GPU; measured, or with `quick` what is remembered."""
    if look.problem:
        return []
    places = ["cpu", "cuda:0"] if look.gpus else ["cpu"]
    checks = []
    for place in places:
        for precision in ("bf16", "fp16"):
            found = known(precision, place) if quick else probe(precision, place, fresh=True)
            checks.append(judge_format(f"{precision} on {place}", found))
    return checks


def judge_format(name: str, found: Probe | None) -> Check:
    """A format that does not work is no error: fp32 is the default."""
    if found is None:
        return ok(name, "not measured yet", "Leave out --quick to measure it.")
    if not found.works:
        return warning(name, found.sentence, "Stay with precision=fp32 here.")
    if found.environment:
        variables = " ".join(f"{key}={value}" for key, value in found.environment.items())
        return warning(name, found.sentence, f"Before the start: export {variables}")
    return ok(name, found.sentence)


def warm_server() -> Check:
    """Whether workers start from a process that is ready."""
    from cordee.runtime.nursery import connect_warm

    refused: list[str] = []
    server = connect_warm(refused.append)
    if refused:
        return warning("warm server", refused[0], "Runs begin without one, some seconds later.")
    if server is None:
        return ok("warm server", "not running", "`cordee warm` makes the next runs start in milliseconds.")
    server.close()
    return ok("warm server", "running")
