"""Other programs connect to a run's ports, ours and gloo's, which nothing protects: the run goes on."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from cordee.core.errors import CordeeError
from cordee.core.events import Event, ServerEvent, StepEvent
from cordee.group.messages import Hello, Welcome, Who, decode_message
from cordee.group.transport.sockets import keep, open_sockets, seal, shut
from cordee.group.wire import HEADER, Address, connect, nonce, pack, proof, unpack
from cordee.runtime import start as starting
from cordee.runtime.coordinator.supervised import Coordinator
from cordee.sync.server import messages as said
from cordee.watch.summarise import summarise
from harness import DEADLINE_S, Run, assert_same, job_file, start, train
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


def test_a_connection_of_our_own_is_none_of_a_group() -> None:
    """A worker that finds another coordinator while it forms a group keeps it when that group is shut."""
    before = open_sockets()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours, of_group = (socket.create_connection(listener.getsockname()) for _ in range(2))
        (served, _), (other, _) = listener.accept(), listener.accept()
        opened = {fd: inode for fd, inode in open_sockets().items() if fd not in before}
        keep(ours)
        shut({fd: opened[fd] for fd in (ours.fileno(), of_group.fileno())})
        with ours, of_group, served, other:
            ours.sendall(b"still here")
            assert served.recv(20) == b"still here" and other.recv(20) == b""


WHO = Who("worker", "here", 0)
ATTACKS = {
    b"\x00\x00\x00\x07garbage": "sent what is no message",
    b"\xff\xff\xff\xff": "announced a message that is too long",
    pack(Hello(nonce()))[:9]: "hung up in the middle of a message",
    pack(Hello(nonce())) + pack(WHO): "did not show that it knows the token",
}
TIMES = 30


class Attack:
    """Attacks the coordinator and a parameter server of a run from its third step on; it waits for the end of that."""

    def __init__(self, over: Path) -> None:
        self.over, self.token, self.ports = over, "", [0, 0]
        self.error: BaseException | None = None
        self._server, self._thread = 0, threading.Thread(target=self._run)

    def coordinator(self, *given: Any) -> Coordinator:
        """In the place of the run's own, to learn where it listens."""
        made = Coordinator(*given)
        self.token, self.ports[0] = made.address.token, made.address.port
        return made

    def __call__(self, event: Event) -> None:
        if isinstance(event, ServerEvent) and event.what == "first":
            self._server = event.pid
        if isinstance(event, StepEvent) and event.step == 3:
            self._thread.start()

    def _run(self) -> None:
        try:
            (self.ports[1],) = listeners(self._server)
            for port in self.ports:
                for raw in [*ATTACKS] * TIMES:
                    exchange(port, raw)
                with pytest.raises(CordeeError, match="token"):
                    connect(Address("127.0.0.1", port, "b" * 64), WHO)
            recorded = self._pushed()
            for _ in range(3):
                exchange(self.ports[1], recorded)
        except BaseException as error:
            self.error = error
        finally:
            self.over.touch()

    def _pushed(self) -> bytes:
        """A session of one that has the token and repeats, with other numbers, a push of the first step; its bytes."""
        mine, sent = Hello(nonce()), []
        with (
            socket.create_connection(("127.0.0.1", self.ports[1]), DEADLINE_S) as sock,
            sock.makefile("rb") as answers,
        ):

            def send(message: Any, *, answered: bool = True) -> Any:
                sent.append(pack(message))
                sock.sendall(sent[-1])
                if not answered:
                    return None
                head = answers.read(HEADER.size)
                return unpack(head, answers.read(HEADER.unpack(head)[0]), decode_message)

            theirs = send(mine).nonce
            shown = proof(self.token, "worker", b"", mine.nonce, theirs)
            assert isinstance(send(msgspec.structs.replace(WHO, proof=shown)), Welcome)
            for _ in range(3):
                send(said.Push(0, 0, (1, 0), 0, [0]), answered=False)
                sent.append(np.full((48, 64), 1e6).tobytes())
                sock.sendall(sent[-1])
            sock.shutdown(socket.SHUT_WR)
            assert answers.read() == b"", "it was read to its end"
        return b"".join(sent)


def exchange(port: int, raw: bytes) -> None:
    """Send this, and wait until the other end hangs up."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), DEADLINE_S) as sock:
        sock.sendall(raw)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1000):
            pass


def test_attacks_on_a_run_in_progress(
    reference: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It trains what one process trains, and its record names what was tried, where and how often, in a few lines."""
    attack = Attack(tmp_path / "over")
    monkeypatch.setattr(starting, "Coordinator", attack.coordinator)
    run = train("steady", tmp_path / "run", workers=2, plan="sync=server", listen=attack, awaits=attack.over)
    assert attack.error is None and run.result["failures"] == 0
    assert_same(run, reference("steady"))
    counts: dict[str, dict[str, int]] = {}
    for event in run.of("stranger"):
        assert event["address"] == "127.0.0.1"
        counts.setdefault(event["listener"], {})[event["reason"]] = event["count"]
    expected = dict.fromkeys(ATTACKS.values(), TIMES) | {"hung up before it showed the token": 1}
    replayed = {"did not show that it knows the token": TIMES + 3}
    assert counts == {"the coordinator": expected, "server 0": expected | replayed}
    assert len(run.of("stranger")) == 2 * (3 * len(ATTACKS) + 1)
    told = [one.text for one in summarise(run.out).incidents if one.kind == "stranger"]
    assert any("server 0" in text and "33 times: it did not show that it knows the token" in text for text in told)
