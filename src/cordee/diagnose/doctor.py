"""What on this machine helps or hinders a run: a list of checks, each with its result and what to do."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import psutil

from cordee.core.cgroup import cpu_quota, memory_limit
from cordee.core.machine import gpus, usable_cores
from cordee.diagnose import machine, network, software, torch_look, twin
from cordee.diagnose.check import Check, warning

Look = Callable[[], Check | list[Check]]


@dataclass(frozen=True)
class Examination:
    """What is asked of the doctor."""

    quick: bool = False
    """Measure nothing that takes seconds."""
    port: int | None = None
    token_file: Path | None = None
    connect_warm: software.ConnectWarm = lambda say: None
    """Connects to the warm server, which belongs to a higher row of folders: the caller hands it in."""

    @cached_property
    def torch(self) -> torch_look.TorchLook:
        """What torch says; asked once, when a look first needs it."""
        return torch_look.ask()

    def looks(self) -> Iterator[tuple[str, Look]]:
        """Every look with the name under which it is announced, in the order of the report."""
        yield "python", software.check_python
        yield "packages", software.check_packages
        yield "torch", lambda: software.judge_torch(self.torch)
        yield "devices", lambda: software.judge_devices(self.torch, gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))
        yield "cores", lambda: machine.judge_cores(len(usable_cores()), cpu_quota())
        yield "memory", lambda: machine.judge_memory(psutil.virtual_memory().available, memory_limit())
        yield "shared memory", machine.check_shared_memory
        yield "open files", lambda: machine.judge_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
        yield "disk", machine.check_disk
        yield "number formats", lambda: software.check_formats(self.torch, self.quick)
        yield "C++ compiler", machine.check_compiler
        yield "warm server", lambda: software.check_warm_server(self.connect_warm)
        yield "interfaces", lambda: network.judge_interfaces(network.find_interfaces())
        yield "host name", network.check_host_name
        yield "loopback", network.check_loopback
        if self.port is not None:
            yield "port", partial(network.check_port, self.port)
        yield "encryption", network.describe_protection
        yield "token", self._token
        yield "twin: namespaces", twin.check_namespaces
        yield "twin: CPU shares", twin.check_cpu_shares

    def _token(self) -> Check:
        if self.torch.problem:  # our channel's modules load torch, which may end this very process
            return warning("token", "not checked", "Fix torch first.")
        return network.check_token(self.token_file)


def examine(examination: Examination, tell: Callable[[str], None] = lambda name: None) -> list[Check]:
    """Every check, in order; `tell` hears the name of each look before it begins."""
    checks: list[Check] = []
    for name, look in examination.looks():
        tell(name)
        checks += run_look(name, look)
    return checks


def run_look(name: str, look: Look) -> list[Check]:
    """One look; if it fails itself, a strange machine is no reason to leave out the others."""
    try:
        checks = look()
    except Exception as problem:
        failure = f"this check itself failed: {type(problem).__name__}: {problem}"
        return [warning(name, failure, "Please report it, with what is unusual here.")]
    return checks if isinstance(checks, list) else [checks]


def exit_code(checks: list[Check]) -> int:
    """0 without an error; else the code with which a run would end because of the first one."""
    return next((one.code for one in checks if one.state == "error"), 0)
