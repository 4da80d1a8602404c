"""What on this machine helps or hinders a run: a list of looks, each of which says what it found and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from cordee.runtime import doctor_machine, doctor_network, doctor_software, doctor_twin, torch_look
from cordee.runtime.check import Check, warning

Look = Callable[[], Check | list[Check]]


@dataclass(frozen=True)
class Examination:
    """What is asked of the doctor."""

    quick: bool = False
    """Measure nothing that takes seconds."""
    port: int | None = None
    token_file: Path | None = None

    @cached_property
    def torch(self) -> torch_look.TorchLook:
        """What torch says; asked once, by whoever needs it first."""
        return torch_look.ask()

    def looks(self) -> Iterator[tuple[str, Look]]:
        """Every look with the name under which it is announced, in the order of the report."""
        yield "python", doctor_software.python
        yield "packages", doctor_software.packages
        yield "torch", lambda: doctor_software.judge_torch(self.torch)
        yield "devices", lambda: doctor_software.devices(self.torch)
        yield "cores", doctor_machine.cores
        yield "memory", doctor_machine.memory
        yield "shared memory", doctor_machine.shared_memory
        yield "open files", doctor_machine.open_files
        yield "disk", doctor_machine.disk
        yield "number formats", lambda: doctor_software.formats(self.torch, self.quick)
        yield "C++ compiler", doctor_machine.compiler
        yield "warm server", doctor_software.warm_server
        yield "interfaces", lambda: doctor_network.judge_interfaces(doctor_network.interfaces())
        yield "host name", doctor_network.host_name
        yield "loopback", doctor_network.loopback
        if self.port is not None:
            yield "port", partial(doctor_network.port, self.port)
        yield "encryption", doctor_network.protection
        yield "token", self._token
        yield "twin: namespaces", doctor_twin.namespaces
        yield "twin: CPU shares", doctor_twin.cpu_shares

    def _token(self) -> Check:
        if self.torch.problem:  # our channel's modules load torch, which may end this very process
            return warning("token", "not checked", "Mend torch first.")
        return doctor_network.token(self.token_file)


def examine(examination: Examination, tell: Callable[[str], None] = lambda name: None) -> list[Check]:
    """Every check, in order; `tell` hears the name of each look before it begins."""
    checks: list[Check] = []
    for name, look in examination.looks():
        tell(name)
        checks += guarded(name, look)
    return checks


def guarded(name: str, look: Look) -> list[Check]:
    """One look; if it fails itself, a strange machine is no reason to leave out the others."""
    try:
        found = look()
    except Exception as problem:
        said = f"{type(problem).__name__}: {problem}"
        return [warning(name, f"this check itself failed: {said}", "Please report it, with what is unusual here.")]
    return found if isinstance(found, list) else [found]


def exit_code(checks: list[Check]) -> int:
    """0 without an error; else the code with which a run would end because of the first one."""
    return next((one.code for one in checks if one.state == "error"), 0)
