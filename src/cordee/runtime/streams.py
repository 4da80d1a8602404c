"""Standard output and error that outlive their terminal: a run does not end because its output is not read."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

GONE = (errno.EIO, errno.EPIPE)
"""How the system says that a terminal was closed, or that the reader of a pipe has ended."""


class _Lasting(io.FileIO):
    """Takes everything, also when its reader is gone."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            if error.errno not in GONE:
                raise
            return memoryview(data).nbytes


def fill_closed() -> None:
    """Open what a parent has closed of standard input, output and error, as nothing.

    The next file or socket would take that number otherwise, and workers would print into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            assert os.open(os.devnull, os.O_RDWR) == number
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115  (stays open)


def outlive_terminal() -> None:
    """From now on nothing that this process prints fails because its reader is gone."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        old = getattr(sys, name)
        try:
            if old is None or old.fileno() != number:
                continue  # the user put something else there, which is not ours to replace
            old.flush()
            raw = _Lasting(number, "w", closefd=False)
        except (OSError, ValueError, AttributeError):
            continue
        new = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=old.encoding,
            errors=old.errors,
            line_buffering=True,  # also in a file or a pipe: a reader sees a line when it is printed
            write_through=old.write_through,
        )
        setattr(sys, name, new)
