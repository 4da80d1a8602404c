"""Where and with what a result was measured."""

from __future__ import annotations

import datetime
import os
import platform
from importlib.metadata import version
from pathlib import Path


def described() -> dict[str, str]:
    """Date, machine and versions, as they stand at the head of every result."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores",
        "versions": f"Python {platform.python_version()}, torch {version('torch')}, numpy {version('numpy')}",
    }
