"""A process that has imported everything and forks workers from itself: a worker starts in milliseconds.

A run has a server of its own, which ends with it. `cordee warm` leaves one behind that serves the next commands: it
forks a server for every run that connects. When the launcher goes away, its connection closes, and the run's server
ends its workers and itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec
import psutil

from cordee.core.errors import CordeeError
from cordee.core.text import plain
from cordee.group.messages import name_of
from cordee.group.wire import HEADER, length_of, pack, unpack
from cordee.runtime.spec import WorkerSpec
from cordee.runtime.streams import outlive_terminal

T = TypeVar("T")
LATE = ("torch.export._trace", "sympy.tensor.tensor")
"""What a run imports at its end to trace its model: 400 modules, half a second."""
GRACE_S = 1.0
"""How long workers may take to end by themselves after their launcher is gone."""


class News(msgspec.Struct):
    """What the server says of a worker; without a number, that it has imported everything."""

    worker: int = -1
    pid: int = 0
    """Of the process that it is now."""
    status: int | None = None
    """Of one that ended, was stopped or goes on, as `os.waitpid` gives it."""
    reason: str = ""
    """Why it could not be started."""


COORDINATE = "coordinate"
decode_request: Callable[[bytes], WorkerSpec | int | str] = msgspec.json.Decoder(WorkerSpec | int | str).decode
"""A worker to fork, whose open files come with it, a process to end, or that the run's coordinator is to be forked."""
decode_news: Callable[[bytes], News] = msgspec.json.Decoder(News).decode


def send(sock: socket.socket, message: object, descriptors: tuple[int, ...] = ()) -> None:
    """One message, with open files that the receiver gets copies of."""
    frame = pack(message)
    sent = socket.send_fds(sock, [frame], descriptors) if descriptors else 0
    sock.sendall(frame[sent:])


def receive(sock: socket.socket, decode: Callable[[bytes], T]) -> tuple[T | None, list[int]]:
    """The next message and its open files; None at the end."""
    try:
        head, descriptors, _, _ = socket.recv_fds(sock, HEADER.size, 8)
        head += _exactly(sock, HEADER.size - len(head))
        return unpack(head, _exactly(sock, length_of(head)), decode), descriptors
    except (OSError, ValueError):
        return None, []


def _exactly(sock: socket.socket, count: int) -> bytes:
    """So many bytes, or what came before the end."""
    parts = b""
    while len(parts) < count and (part := sock.recv(count - len(parts))):
        parts += part
    return parts


def preload(*, for_many: bool) -> None:
    """Import what every worker needs, `for_many` runs also what each needs at its end.

    Nothing may start a thread pool here: a fork would not survive it.
    """
    gc.disable()  # imports leave no garbage, and to look for it takes a fifth of their time
    import torch
    import torch._dynamo  # noqa: F401  (every optimizer imports it at its first step)

    import cordee.runtime.coordinator.process
    import cordee.runtime.worker  # noqa: F401

    for late in LATE if for_many else ():
        importlib.import_module(late)
    gc.freeze()  # keep the imported objects' pages shared
    gc.enable()


def serve(sock: socket.socket) -> NoReturn:
    """Fork a worker for every request, report its end, and end all when the launcher is gone."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children: dict[int, int] = {}
    _say(sock, News())
    while True:
        readable, _, _ = select.select([sock.fileno(), wake_read], [], [])
        if wake_read in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 4096)
            _reap(sock, children)
        if sock.fileno() not in readable:
            continue
        message, descriptors = receive(sock, decode_request)
        if message is None:
            _end_all(children)
        if isinstance(message, str):
            _fork_coordinator(sock, descriptors)
            continue
        if isinstance(message, int):
            if message in children:  # still ours, so the number has not passed to another process
                os.kill(message, signal.SIGKILL)
            continue
        try:
            pid = os.fork()
        except OSError as error:  # no memory, or too many processes
            pid = -1
            _say(sock, News(message.worker, reason=error.strerror or str(error)))
        if pid == 0:
            signal.set_wakeup_fd(-1)
            os.close(wake_read)
            os.close(wake_write)
            sock.close()
            _become_worker(message, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        if pid > 0:
            children[pid] = message.worker
            _say(sock, News(message.worker, pid))


def _fork_coordinator(sock: socket.socket, descriptors: list[int]) -> None:
    """It is none of the workers, which end with us: it ends by itself when its launcher is gone."""
    try:
        child = os.fork() == 0
    except OSError:  # no memory, or too many processes: the launcher sees that its link has no other end
        child = False
    if child:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        sock.close()
        _name_process("cordee-hub")
        from cordee.runtime.coordinator.process import coordinate

        coordinate(*descriptors)
    for descriptor in descriptors:
        os.close(descriptor)


def _name_process(name: str) -> None:
    """The name that ps and top show."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(None).prctl(15, name.encode())


def _say(sock: socket.socket, news: News) -> None:
    with contextlib.suppress(OSError):  # the launcher is gone: the next read says so
        send(sock, news)


def _reap(sock: socket.socket, children: dict[int, int]) -> None:
    """Tell the launcher which workers ended, were stopped, or go on after that."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid not in children:
            continue
        _say(sock, News(children[pid], pid, status))
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            del children[pid]


def _end_all(children: dict[int, int]) -> NoReturn:
    """Workers notice by themselves that their launcher is gone; a worker that does not is ended."""
    _, left = psutil.wait_procs([psutil.Process(pid) for pid in children], GRACE_S)
    for process in left:
        process.kill()
    os._exit(0)


def _become_worker(spec: WorkerSpec, descriptors: list[int]) -> NoReturn:
    """In the child: take the launcher's output and run the worker."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # should this server be killed, its workers go with it
    _name_process(name_of(spec.worker).replace("worker ", "cordee-").replace("server ", "cordee-s"))
    os.dup2(descriptors[0], 1)
    os.dup2(descriptors[1], 2)
    for descriptor in descriptors[:2]:
        os.close(descriptor)
    outlive_terminal()
    gc.unfreeze()
    code = 1
    try:
        from cordee.runtime.worker import work

        code = work(spec, descriptors[2] if len(descriptors) > 2 else None)
    except CordeeError as error:  # no launcher to tell: it is gone, or too busy to answer
        print(plain(f"cordee: worker {spec.worker} ends: {error}"), file=sys.stderr)  # noqa: T201
        code = error.code
    except BaseException:
        traceback.print_exc()  # before the worker has a launcher to tell
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def stay_warm(path: Path, minutes: float) -> None:
    """Serve runs of this user at a Unix socket until none has come for so long."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    making = path.with_suffix(f".{os.getpid()}")
    old = os.umask(0o177)
    listener.bind(str(making))
    os.umask(old)
    listener.listen(16)
    making.replace(path)  # a client that finds it can connect
    listener.settimeout(60 * minutes)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # servers of runs are not waited for
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # `cordee warm --stop`; runs that are going on have their own
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)  # a reader of our starter's output must not wait for the end of ours
    os.close(nowhere)
    try:
        while True:
            connection, _ = listener.accept()
            # Python drops what a signal's handler raises within a fork: there its modules' own hooks run.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            child = os.fork() == 0
            if child:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            if child:
                serve(connection)
            connection.close()
    except TimeoutError:
        pass
    finally:
        path.unlink(missing_ok=True)


def main() -> None:
    """`python -m cordee.runtime.engines.forkserver FD [coordinate]`, or `PATH MINUTES` to stay warm.

    To `coordinate` is the first thing that the launcher asks for, and needs nothing of what is loaded after it.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # no thread pool may exist before the fork
    first, *more = sys.argv[1:]
    if more and more != [COORDINATE]:
        preload(for_many=True)
        stay_warm(Path(first), float(more[0]))
        return
    sock = socket.socket(fileno=int(first))
    if more:
        request, descriptors = receive(sock, decode_request)
        if request is None:
            return
        _fork_coordinator(sock, descriptors)
    preload(for_many=False)
    serve(sock)


if __name__ == "__main__":
    main()
