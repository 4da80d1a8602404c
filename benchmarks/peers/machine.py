"""Where and with what a result was measured."""

from __future__ import annotations

import datetime
import os
import platform
from importlib.metadata import version
from pathlib import Path


def described(*packages: str) -> dict[str, str]:
    """Date, machine and versions, of these packages too, as they stand at the head of every result."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores",
        "versions": ", ".join(
            [
                f"Python {platform.python_version()}",
                *(f"{name} {version(name)}" for name in ("torch", "numpy", *packages)),
            ]
        ),
    }
