"""Before the start: whether what the plan asks of the devices works here, and whether it pays."""

from __future__ import annotations

from collections.abc import Callable

from cordee.core.errors import PlanError
from cordee.core.plan import Plan
from cordee.diagnose.machine import find_compiler
from cordee.diagnose.number_format import NOTABLE, recall_format, try_format


def check_formats(plan: Plan, device: str, threads: int, say: Callable[[str], None]) -> dict[str, str]:
    """Refuse what does not work, say what would be slower; returns variables to be set before torch is loaded."""
    if plan.compile and device == "cpu":
        _require_compiler()
    if plan.precision == "tf32" and device == "cpu":
        raise PlanError(
            "plan key precision=tf32 is a format of NVIDIA GPUs (Ampere and later), but this run computes on the CPU: "
            "leave precision out"
        )
    if plan.precision in ("fp32", "tf32"):  # a GPU that does not know tf32 computes in fp32
        return {}
    found = recall_format(plan.precision, device, threads=threads)
    if found is None:
        say(f"measuring once whether {plan.precision} works here and is faster than fp32")
        found = try_format(plan.precision, device, threads=threads)
    if not found.works:
        raise PlanError(found.sentence)
    if found.speed * NOTABLE <= 1 or found.environment:
        say(found.sentence)
    return found.environment


def _require_compiler() -> None:
    wanted, found = find_compiler()
    if not found:
        raise PlanError(
            f"compile=true needs a C++ compiler on a CPU, and there is no {wanted or 'g++ or clang++'}: install one "
            "(on Debian and Ubuntu: g++), name it in the variable CXX, or leave compile out"
        )
