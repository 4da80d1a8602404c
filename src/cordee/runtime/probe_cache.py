"""What probes found, remembered in the user's cache folder: one small JSON file a machine, format and setting.

A cache is a convenience: one that is damaged, missing or not writable is no error, it only costs a measurement.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MEASURE = "1"
"""Counted up when the way of measuring changes, so that what was measured otherwise is forgotten."""


def folder() -> Path:
    """Where this user's caches lie."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cordee"


def machine(device: str) -> dict[str, str]:
    """What a measurement depends on besides the setting: torch, and the processor or the GPUs with their driver."""
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = ""
    hardware = processor(_text(Path("/proc/cpuinfo"))) if device == "cpu" else _gpus()
    return {"measure": MEASURE, "torch": torch, "kernel": os.uname().release, "hardware": hardware}


def processor(cpuinfo: str) -> str:
    """Model and flags of the first processor of /proc/cpuinfo; ARM calls them by other names."""
    wanted = ("model name", "cpu family", "model", "flags", "features", "cpu implementer", "cpu part")
    lines = []
    for line in cpuinfo.split("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() in wanted:
            lines.append(f"{name.strip()}: {value.strip()}")
    return "\n".join(lines)


def read(key: Mapping[str, str]) -> dict[str, Any] | None:
    """What was found under this key; None if nothing was, or it cannot be read."""
    if not key["hardware"]:
        return None
    try:
        content = json.loads(_path(key).read_text(encoding="utf-8"))
        # The whole key is compared, so that a file can be read by a person and never speaks for another machine.
        found = content["found"] if content["key"] == dict(key) else None
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, dict) else None


def write(key: Mapping[str, str], found: Mapping[str, Any]) -> None:
    """Remember it, if the folder can be written and the hardware is known."""
    if not key["hardware"]:
        return
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: a user without a home
        path = _path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps({"key": dict(key), "found": dict(found)}, indent=1), encoding="utf-8")
        temporary.replace(path)  # another process reads the old file or the new one, never half of one


def _path(key: Mapping[str, str]) -> Path:
    digest = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()
    return folder() / f"probe-{digest[:16]}.json"


def _gpus() -> str:
    """The GPUs of this host and their driver; nothing is loaded to find out, and nothing is known without the files."""
    models = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        models += [line.partition(":")[2].strip() for line in _text(file).splitlines() if line.startswith("Model:")]
    if not models:
        return ""
    driver = _text(Path("/proc/driver/nvidia/version")).partition("\n")[0]
    return "\n".join([*models, driver, f"visible: {os.environ.get('CUDA_VISIBLE_DEVICES', 'all')}"])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
