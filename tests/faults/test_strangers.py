"""Other programs of this machine connect to gloo's ports, which nothing protects: the run goes on."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordee.group.transport.sockets import open_sockets, seal
from harness import DEADLINE_S, Run, job_file, start
from records import events_until

FILES = 160
"""As many as each process of the run may have open."""
CONNECTIONS = 200


def listeners(pid: int) -> list[int]:
    """The ports at which a process listens."""
    mine = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            mine.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in mine]


@contextlib.contextmanager
def strangers(ports: list[int], count: int) -> Iterator[list[socket.socket]]:
    """So many connections to each, which say nothing and stay."""
    with contextlib.ExitStack() as stack:
        made = []
        for port in ports:
            for _ in range(count):
                made.append(stack.enter_context(socket.socket()))
                made[-1].setblocking(False)
                made[-1].connect_ex(("127.0.0.1", port))
        yield made


def limit() -> None:
    """In the child."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES // 2, FILES))


def test_idle_connections_do_not_end_a_run(warm: int, tmp_path: Path) -> None:
    """More than a worker may have open files, of which it may have as many as the system lets it."""
    cold = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}  # so that the workers inherit the limit
    out = tmp_path / "run"
    there = tmp_path / "there"
    words = ("train", job_file("steady"), "--workers", "2", "--out", out, "--set", f"awaits={there}")
    with start(*words, env=cold, preexec_fn=limit) as process:
        pids = [event["pid"] for event in events_until(out, process, 3) if event["event"] == "worker"]
        for pid in pids:
            limits = Path(f"/proc/{pid}/limits").read_text().partition("Max open files")[2].split()
            assert limits[:2] == [str(FILES), str(FILES)]
        ports = [port for pid in pids for port in listeners(pid)]
        assert len(ports) >= 2
        with strangers(ports, CONNECTIONS):
            there.touch()
            _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors
    run = Run(out)
    assert run.result["failures"] == 0 and len(run.of("step")) == run.result["steps"] == 30


def test_a_sealed_port_takes_no_more_connections() -> None:
    before = open_sockets()
    with socket.create_server(("127.0.0.1", 0)) as sealed, socket.create_server(("127.0.0.2", 0)) as other:
        old = socket.create_connection(sealed.getsockname())
        served, _ = sealed.accept()
        opened = {fd: inode for fd, inode in open_sockets().items() if fd not in before}
        seal(opened, "127.0.0.1")
        with pytest.raises(TimeoutError):
            socket.create_connection(sealed.getsockname(), timeout=0.3)
        socket.create_connection(other.getsockname(), timeout=DEADLINE_S).close()
        with old, served:
            old.sendall(b"still here")
            assert served.recv(20) == b"still here"
