"""A process that runs tasks for the one that started it, and ends with it: `python -m cordee.feed.taskprocess`."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import threading
import traceback
from queue import SimpleQueue
from typing import Any

from cordee.core.errors import CordeeError, kind_of_error
from cordee.feed.taskwire import DONE, FAILED, NOTICE, heard, packed, receive, send, unpacked
from cordee.feed.threads import use_threads


def main(descriptor: int, parent: int, threads: int) -> None:
    """Serve until the other end of the socket says that there is nothing more, or is gone."""
    sock = socket.socket(fileno=descriptor)
    use_threads(threads)
    came: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(sock, parent, came), name="cordee-tasks", daemon=True).start()
    paths: list[str] = unpacked(came.get())
    sys.path[:] = list(dict.fromkeys([*paths, *sys.path]))  # modules are found as in the process that sent the work
    raw, work = came.get(), None
    with heard(lambda value: send(sock, packed((NOTICE, -1, value), "a report"))):
        while task := came.get():
            number, packed_task = unpacked(task)
            try:
                if work is None:
                    work = unpacked(raw)
                answer = packed((DONE, number, work(unpacked(packed_task))), "the result of a task")
            except BaseException as error:  # also sys.exit() of the user's
                answer = packed((FAILED, number, _told(error)), "an error")
            send(sock, answer)
            del answer


def _told(error: BaseException) -> tuple[bytes, str]:
    """The exception, as far as it can be sent, and its traceback."""
    told = "".join(traceback.format_exception(error))
    if isinstance(error, CordeeError) and (kind := kind_of_error(error)) is not type(error):
        error = kind(error.message, next_step=error.next_step)
    with contextlib.suppress(Exception):
        raw = packed(error, "an error")
        unpacked(raw)  # some can be packed and not unpacked: their constructors want more than one argument
        return raw, told
    return b"", told


def _listen(sock: socket.socket, parent: int, came: SimpleQueue[Any]) -> None:
    """Take messages as they come. When the other process is gone, so is this one, whatever it does at the moment."""
    watched = selectors.DefaultSelector()
    watched.register(sock, selectors.EVENT_READ)
    with contextlib.suppress(OSError):  # a fork of the other process may hold its end of the socket: so watch it too
        watched.register(os.pidfd_open(parent), selectors.EVENT_READ)
    if os.getppid() != parent:
        os._exit(1)
    message: bytes | None = b"?"
    while message:  # an empty one is the last
        ready = [key.fileobj for key, _ in watched.select()]
        message = receive(sock) if sock in ready else None
        if message is None:
            os._exit(1)
        came.put(message)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
