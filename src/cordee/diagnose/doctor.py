"""What on this machine helps or hinders a run: a list of checks, each with its result and what to do."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import psutil

from cordee.core.cgroup import cpu_quota, memory_limit
from cordee.core.machine import gpus, usable_cores
from cordee.diagnose import machine, network, software
from cordee.diagnose.check import Check

Look = Callable[[], Check | list[Check]]


def examine(
    *, quick: bool, port: int | None, token_file: Path | None, tell: Callable[[str], None] = lambda name: None
) -> list[Check]:
    """Every check, in the order of the report; `tell` hears the name of each look before it begins.

    `quick`: measure nothing that takes seconds.
    """
    torch = cache(software.ask_torch)
    looks: dict[str, Look] = {
        "packages": software.check_packages,
        "torch": lambda: software.judge_torch(torch()),
        "devices": lambda: software.judge_devices(torch(), gpus()),
        "cores": lambda: machine.judge_cores(len(usable_cores()), cpu_quota()),
        "memory": lambda: machine.judge_memory(psutil.virtual_memory().available, memory_limit()),
        "shared memory": machine.check_shared_memory,
        "disk": machine.check_disk,
        "number formats": lambda: software.check_formats(torch(), quick),
        "C++ compiler": machine.check_compiler,
        "interfaces": network.check_interfaces,
        "port": lambda: [] if port is None else network.check_port(port),
        "encryption": network.describe_protection,
        # Our channel's modules load torch, which may end this very process.
        "token": lambda: [] if torch().problem else network.check_token(token_file),
        "twin": network.check_twin,
    }
    checks: list[Check] = []
    for name, look in looks.items():
        tell(name)
        checks += run_look(name, look)
    return checks


def run_look(name: str, look: Look) -> list[Check]:
    """One look; if it fails itself, a strange machine is no reason to leave out the others."""
    try:
        checks = look()
    except Exception as problem:
        failure = f"this check itself failed: {type(problem).__name__}: {problem}"
        return [Check(name, "warning", failure, "Please report it, with what is unusual here.")]
    return checks if isinstance(checks, list) else [checks]


def exit_code(checks: list[Check]) -> int:
    """0 without an error; else the code with which a run would end because of the first one."""
    return next((one.code for one in checks if one.state == "error"), 0)
