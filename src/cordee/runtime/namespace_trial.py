"""Run in a process of its own by the doctor: make a network namespace with a link whose speed is limited.

Everything happens inside a new namespace that ends with this process: the network of the host is not touched. It prints
a word for each thing that worked; why the next one did not is the last line of its standard error.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

CLONE_NEWNET = 0x40000000
"""From linux/sched.h; Python has `os.unshare` since 3.12 only."""
COMMAND_S = 5.0

STAGES: dict[str, list[str]] = {
    "link": ["ip", "link", "add", "cordee0", "type", "veth", "peer", "name", "cordee1"],
    "speed": [
        *("tc", "qdisc", "add", "dev", "cordee0", "root"),
        *("tbf", "rate", "100mbit", "burst", "64kb", "latency", "50ms"),
    ],
}
"""After `namespace`, in this order."""


def main() -> None:
    """Try one thing after the other, and end at the first that fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        sys.exit(f"unshare: {os.strerror(ctypes.get_errno())}")
    _worked("namespace")
    for word, command in STAGES.items():
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as problem:
            sys.exit(f"{command[0]}: {problem}")
        if done.returncode != 0:
            sys.exit(f"{command[0]}: {' '.join(done.stderr.split()) or done.returncode}")
        _worked(word)


def _worked(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
