"""Waiting for gloo, without waiting for ever.

When a connection is shut, gloo tells everybody who waits for a message on it, except for him whose message has come in
part: he would wait until the deadline. So we look now and then whether somebody was lost.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

LOOK_S = 1.0
"""Between two looks; whoever is told by gloo itself is told at once."""


class Stuck(RuntimeError):
    """Somebody was lost, and gloo has not noticed."""


def await_work(work: Any, broken: Callable[[], bool]) -> None:
    """Wait for a collective; raises `RuntimeError` if it failed, `Stuck` if it never will."""
    if not isinstance(work, dist.Work):
        work.wait()
        return
    looks = 0
    while True:
        try:
            work.wait(timedelta(seconds=LOOK_S))
            return
        except RuntimeError as error:
            if work.is_completed():
                work.wait()  # raises its own error, if it has one: it may have come to its end just after our timeout
                return
            looks += broken()
            if looks > 1:  # what was shut at the first look has had its time to be noticed
                raise Stuck("a peer was lost in the middle of a message") from error


def keep_for_ever(*groups: Any) -> None:
    """Never take these apart: a group waits for its threads then, and they wait for a peer that was lost."""
    for group in groups:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
