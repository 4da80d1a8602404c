"""A question answered by a child process: whatever it does (crash, hang, print), the asker lives and gets an answer."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from cordee.core import interrupts

Kind = TypeVar("Kind")
AFTER_KILL_S = 5.0
"""How long a killed child may take to go: one that the kernel holds (a broken driver) is left behind."""

LOOK_S = 0.1
"""Between two looks whether a signal has come."""


@dataclass(frozen=True)
class Ended:
    """How a child ended, and what it printed."""

    code: int | None
    """Its exit code; negative: the signal that killed it; None: it ran until its deadline, or never began."""
    output: str = ""
    error: str = ""

    @property
    def killed_by(self) -> str:
        """The name of the signal that killed it, such as SIGILL; empty if none did."""
        return signal.Signals(-self.code).name if self.code is not None and self.code < 0 else ""

    @property
    def words(self) -> str:
        """How it ended, in words; the last line of its standard error tells of its own errors."""
        if self.killed_by:
            return f"killed by {self.killed_by}"
        if self.code == 0:
            return f"its answer makes no sense: {self.output[-80:]!r}"
        return self.error.strip().rpartition("\n")[2] or f"it ended with exit code {self.code} and without a word"

    def answer(self, kind: type[Kind]) -> Kind | None:
        """The JSON value on the last line of its output; None if it is not of this kind, or the child failed."""
        with contextlib.suppress(ValueError):
            return msgspec.json.decode(self.output.rstrip().rpartition("\n")[2], type=kind) if self.code == 0 else None
        return None


def run_child(command: Sequence[str], *, timeout_s: float, environment: Mapping[str, str] | None = None) -> Ended:
    """Run a command with these variables added to ours, until it ends or its time is over."""
    variables = {**os.environ, **(environment or {})}
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=variables, text=True, errors="replace"
        )
    except OSError as error:
        return Ended(None, error=f"it could not begin: {command[0]}: {error.strerror}")
    deadline = time.monotonic() + timeout_s
    try:
        while (left_s := deadline - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, errors = process.communicate(timeout=min(LOOK_S, left_s))
                return Ended(process.returncode, output, errors)
            interrupts.check()
        return Ended(None, error=f"it did not end within {timeout_s:g} s")
    finally:  # at its deadline, or at Ctrl-C, which nothing else would end it by
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=AFTER_KILL_S)
