"""What a process that runs tasks and the one that started it say to each other, over a socket of their own.

Pickled, for tasks are functions and objects of the user's; both ends were made by the same user's process.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

import cloudpickle

from cordee.core.errors import DataError

_LENGTH = struct.Struct("<Q")
DONE, FAILED, NOTICE = "done", "failed", "notice"
"""What a message to the caller is: a task's result, its exception, or what it reported meanwhile."""

Hear = Callable[[Any], None]


class _Ear(threading.local):
    """What becomes of reports in this thread."""

    hear: Hear | None = None


_ear = _Ear()


def report(value: Any) -> None:
    """Send a value to the caller of `run_tasks` from within a task; nothing happens outside of one."""
    if _ear.hear is not None:
        _ear.hear(value)


@contextlib.contextmanager
def heard(hear: Hear | None) -> Iterator[None]:
    """What this thread reports in here goes to `hear`."""
    before, _ear.hear = _ear.hear, hear
    try:
        yield
    finally:
        _ear.hear = before


def packed(value: Any, what: str) -> bytes:
    """A value in a form that `unpacked` gives back; functions without a module to import them from go by value."""
    try:
        with _by_value(_hidden_modules()):
            raw: bytes = cloudpickle.dumps(value)
    except Exception as error:  # whatever a user's object raises when it is asked for its state
        raise DataError(
            f"{what} cannot be sent to another process: {error}. It uses an object that this process alone can have "
            "(a lock, an open file, a connection): make it inside the function, or use processes=0"
        ) from error
    return raw


def _hidden_modules() -> Iterator[ModuleType]:
    """Modules that no search path leads to, such as a job's file: what is defined there can only go by value."""
    library = sysconfig.get_path("stdlib")
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        installed = not file or "-packages" in file or file.startswith(library)
        if not installed and "." not in name and name != "__main__" and PathFinder.find_spec(name) is None:
            yield module


@contextlib.contextmanager
def _by_value(modules: Iterator[ModuleType]) -> Iterator[None]:
    known = set(cloudpickle.list_registry_pickle_by_value())
    added = [module for module in modules if module.__name__ not in known]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)


def unpacked(raw: bytes) -> Any:
    """The value that `packed` made bytes of."""
    return cloudpickle.loads(raw)


def send(sock: socket.socket, raw: bytes) -> None:
    """One message."""
    sock.sendall(_LENGTH.pack(len(raw)))
    sock.sendall(raw)


def receive(sock: socket.socket) -> bytes | None:
    """One message; None if the other end is gone."""
    head = _exactly(sock, _LENGTH.size)
    return None if head is None else _exactly(sock, _LENGTH.unpack(head)[0])


def _exactly(sock: socket.socket, count: int) -> bytes | None:
    raw = bytearray(count)
    rest = memoryview(raw)
    while rest:
        try:
            came = sock.recv_into(rest)
        except ConnectionError:
            return None
        if not came:
            return None
        rest = rest[came:]
    return bytes(raw)
