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
    timeout_s: float = 0.0

    @property
    def killed_by(self) -> str:
        """The name of the signal that killed it, such as SIGILL; empty if none did."""
        if self.code is None or self.code >= 0:
            return ""
        try:
            return signal.Signals(-self.code).name
        except ValueError:  # real-time signals have no names
            return f"signal {-self.code}"

    @property
    def words(self) -> str:
        """How it ended, in words; the last line of its standard error tells of its own errors."""
        last = next((line.strip() for line in reversed(self.error.splitlines()) if line.strip()), "")
        if self.code is None:
            return f"it did not end within {self.timeout_s:g} s" if self.timeout_s else f"it could not begin: {last}"
        if self.killed_by:
            meaning = ", an illegal instruction" if self.killed_by == "SIGILL" else ""
            return f"killed by {self.killed_by}{meaning}"
        if self.code == 0:
            return "it ended well"
        return last or f"it ended with exit code {self.code} and without a word"

    def answer(self, kind: type[Kind]) -> Kind | None:
        """The JSON value on the last line of its output; None if it is not of this kind, or the child failed."""
        last = self.output.rstrip().rpartition("\n")[2]
        try:
            return msgspec.json.decode(last, type=kind) if self.code == 0 else None
        except ValueError:
            return None

    @property
    def failure(self) -> str:
        """Why there is no answer."""
        return self.words if self.code != 0 else f"its answer makes no sense: {self.output[-80:]!r}"


def run_child(command: Sequence[str], *, timeout_s: float, environment: Mapping[str, str] | None = None) -> Ended:
    """Run a command with these variables added to ours, until it ends or its time is over."""
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            text=True,
            errors="replace",
        )
    except OSError as error:
        return Ended(None, error=f"{command[0]}: {error.strerror or error}")
    deadline = time.monotonic() + timeout_s
    try:
        while (left_s := deadline - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, errors = process.communicate(timeout=min(LOOK_S, left_s))
                return Ended(process.returncode, output, errors)
            interrupts.check()
    except BaseException:  # Ctrl-C: nothing else would end the child
        process.kill()
        process.wait(AFTER_KILL_S)
        raise
    process.kill()
    output = errors = ""
    with contextlib.suppress(subprocess.TimeoutExpired):
        output, errors = process.communicate(timeout=AFTER_KILL_S)
    return Ended(None, output, errors, timeout_s)
