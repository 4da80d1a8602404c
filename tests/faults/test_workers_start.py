"""What the process that starts workers does when it cannot, or when their launcher is gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cordee.core.errors import CordeeError, RendezvousError, SecurityError
from cordee.core.plan import Plan
from cordee.group.tls import make_server_tls
from cordee.group.wire import Address
from cordee.runtime.engines.forkserver import News, decode_news, receive, send
from cordee.runtime.engines.seam import seats
from cordee.runtime.engines.warm import _connect, connect_warm, start_warm, stop_warm, warm_path
from cordee.runtime.launch import Launch
from cordee.runtime.spec import Target, WorkerSpec
from harness import DEADLINE_S, marked, train, until

NO_FORKS = """
import errno, os, socket, sys
from cordee.runtime.engines import forkserver
def fork():
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
os.fork = fork
forkserver.serve(socket.socket(fileno=int(sys.argv[1])))
"""
STAYS = """
import sys
from pathlib import Path
from cordee.runtime.engines.forkserver import stay_warm
stay_warm(Path(sys.argv[1]), 10)
"""
FORKS_SLOWLY = """
import os, sys, time
def hook():
    open(sys.argv[1] + ".forks", "w").close()
    for _ in range(50):
        time.sleep(0.01)
os.register_at_fork(after_in_parent=hook)
"""


def asked(out: Path) -> WorkerSpec:
    """A worker whose launcher is not there."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    launch = Launch(Target("job", "job.py"), 1, Plan(), out, threads=1)
    return launch.spec(Address("127.0.0.1", port, "t" * 64), "127.0.0.1", *seats([1]))


def answers(sock: socket.socket) -> Iterator[News]:
    sock.settimeout(DEADLINE_S)
    while (message := receive(sock, decode_news)[0]) is not None:
        yield message


def test_a_worker_that_does_not_reach_its_launcher_says_so_in_one_line(warm: int, tmp_path: Path) -> None:
    server = connect_warm()
    assert server is not None
    with server, (tmp_path / "said").open("w") as said:
        heard = answers(server)
        assert next(heard) == News()
        send(server, asked(tmp_path), (said.fileno(), said.fileno()))
        started = next(heard)
        assert started.pid > 0 and started == News(0, started.pid)
        assert next(heard) == News(0, started.pid, RendezvousError.code << 8)
    (line,) = (tmp_path / "said").read_text().splitlines()
    assert line.startswith("cordee: worker 0 ends: could not reach the launcher at 127.0.0.1:")


@contextmanager
def process(code: str, *words: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    made = subprocess.Popen([sys.executable, "-c", code, *words], text=True, **more)
    try:
        yield made
    finally:
        made.kill()
        made.wait(DEADLINE_S)


def test_a_worker_that_cannot_be_forked_is_told(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, process(NO_FORKS, str(theirs.fileno()), pass_fds=[theirs.fileno()]):
        heard = answers(ours)
        assert next(heard) == News()
        send(ours, asked(tmp_path), (1, 2))
        assert next(heard) == News(0, reason=os.strerror(11))


def test_warm_servers_are_stopped_and_their_runs_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert stop_warm() == []
    folder = tmp_path / f"cordee-{os.getuid()}"
    stale, path = folder / "warm-0.sock", folder / "warm-1.sock"
    stale.write_text("")  # of a server that was killed
    mark = f"CORDEE_TESTS_{tmp_path.name}_{os.getpid()}"
    with process(STAYS, str(path), env={**os.environ, mark: "1"}) as server:
        while not path.exists():
            assert server.poll() is None
        run = _connect(path)
        assert run is not None
        heard = answers(run)
        assert next(heard) == News()
        assert stop_warm() == [server.pid]
        assert server.wait(DEADLINE_S) == 0
        assert not path.exists() and not stale.exists()
        assert len(marked(mark)) == 1  # the server of the run
        run.close()
        assert stop_warm() == []
    for one in marked(mark):
        os.kill(one.pid, signal.SIGKILL)


def test_a_warm_server_is_stopped_while_it_forks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python drops what a signal's handler raises there."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert stop_warm() == []
    path = tmp_path / f"cordee-{os.getuid()}" / "warm-1.sock"
    with process(FORKS_SLOWLY + STAYS, str(path)) as server:
        until(path.exists)
        run = _connect(path)
        assert run is not None
        with run:
            until(path.with_suffix(".sock.forks").exists)
            assert stop_warm() == [server.pid]
            assert server.wait(DEADLINE_S) == 0


def test_one_interpreter_by_two_names_has_one_warm_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed command starts `python3`, users type `python`; another environment is another matter."""
    path = warm_path()
    (tmp_path / "python3").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    assert warm_path() == path
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert warm_path() != path


def of_another_user(runtime: Path) -> None:
    folder = runtime / f"cordee-{os.getuid()}"
    folder.mkdir()
    try:
        os.chown(folder, 12345, 12345)
    except PermissionError:
        pytest.skip("only root can give a folder away")


def of_all_users(runtime: Path) -> None:
    (runtime / f"cordee-{os.getuid()}").mkdir(mode=0o777)
    (runtime / f"cordee-{os.getuid()}").chmod(0o777)


def a_link(runtime: Path) -> None:
    (runtime / "mine").mkdir(mode=0o700)
    (runtime / f"cordee-{os.getuid()}").symlink_to(runtime / "mine")


@pytest.mark.parametrize("prepare", [of_another_user, of_all_users, a_link])
def test_a_folder_that_is_not_this_users_alone_is_not_trusted_and_not_needed(
    prepare: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    said: list[str] = []
    assert connect_warm(said.append) is None
    assert "is not private to this user" in said[0]
    with pytest.raises(SecurityError, match="remove it, or set XDG_RUNTIME_DIR"):
        start_warm(1)


@pytest.mark.parametrize("runtime", ["/proc/none", "/dev/null"])
def test_a_run_needs_no_folder_for_warm_servers(runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    with pytest.raises(CordeeError, match="Set XDG_RUNTIME_DIR to one that you can write"):
        start_warm(1)
    if runtime == "/dev/null":
        assert train("mlp", tmp_path / "run", epochs=1).result["steps"] > 0


def test_a_machine_without_a_temporary_folder_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(tempfile, "gettempdir", none)
    assert connect_warm() is None
    assert make_server_tls().certificate  # whose key goes through memory alone
