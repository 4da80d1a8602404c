"""Connections that carry tensors."""

from __future__ import annotations

import errno
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from cordee.group import bulk, tls
from cordee.group.bulk import Gone, Link, Listener, Tally, dial
from cordee.group.messages import Holders, Holding, Place, Who, decode_message
from cordee.group.wire import LOOPBACK, Address
from serving import Serving

SILENCE_S = 20.0


@pytest.fixture
def busy() -> Iterator[None]:
    """Threads that take turns at every instruction: what can happen between two of them, does."""
    before, over = sys.getswitchinterval(), threading.Event()

    def spin() -> None:
        while not over.is_set():
            pass

    spinning = [threading.Thread(target=spin, daemon=True) for _ in range(3)]
    sys.setswitchinterval(1e-6)
    for one in spinning:
        one.start()
    yield
    over.set()
    sys.setswitchinterval(before)
    for one in spinning:
        one.join()


def test_a_cut_link_wakes_the_thread_that_waits(busy: None) -> None:
    """Also one that is just about to wait, while other connections are opened, which take over free descriptors."""
    for _ in range(100):
        sock, other = socket.socketpair()
        link, gone = Link(sock, SILENCE_S, Tally()), threading.Event()

        def wait(link: Link = link, gone: threading.Event = gone) -> None:
            with pytest.raises(Gone):
                link.receive(decode_message)
            gone.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        link.cut()
        opened = [socket.socketpair() for _ in range(2)]
        assert gone.wait(SILENCE_S / 2), "it waits for a connection that is not its own"
        waiting.join()
        link.close()
        for one in (other, *(end for pair in opened for end in pair)):
            one.close()


def test_a_view_that_changes_while_a_worker_dials() -> None:
    """The server that it reaches is no holder any more, and cut off: it answers nothing."""
    serving = Serving()
    first = serving.channel.holders
    old = Place(7, "there", "127.0.0.1", 1)
    sock, silent = socket.socketpair()

    def dial(*_: object) -> Link:
        serving.channel.holders = first  # the coordinator has named another one meanwhile
        return Link(sock, SILENCE_S, Tally())

    shard = serving.shard
    serving.channel.holders = Holders(2, [Holding(old)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cordee.sync.server.shards.dial", dial)
        began = time.monotonic()
        with pytest.raises(Gone):
            shard._thread.submit(lambda: shard._link_to(old).receive(decode_message)).result()
    assert time.monotonic() - began < SILENCE_S / 2, "it waited for a server that is cut off"
    serving.train()
    shard.close()
    silent.close()


def test_a_listener_that_is_there_for_long_has_certificates_that_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "RENEW_S", 0.0)
    token = secrets.token_hex(32)
    listener = Listener(LOOPBACK, token, tls=True, silence_s=SILENCE_S)
    seen: list[object] = [listener._certificates._last]
    listener.start(lambda link, who: link.send(Who("node", "there")))
    for _ in range(2):
        link = dial(Address(LOOPBACK, listener.port, token, True), Who("node", "here"), SILENCE_S)
        assert link.receive(decode_message) == Who("node", "there")
        assert listener._certificates._last not in seen, "another one for each connection"
        seen.append(listener._certificates._last)
        link.close()
    listener.close()


def test_a_listener_goes_on_when_no_more_files_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "PAUSE_S", 0.01)
    token = secrets.token_hex(32)
    listener = Listener(LOOPBACK, token, tls=False, silence_s=SILENCE_S)
    accept, fails = listener._socket.accept, iter(range(3))

    class Crowded:
        """Its socket, of which the first three connections find no descriptor."""

        def accept(self) -> object:
            if next(fails, None) is not None:
                raise OSError(errno.EMFILE, "Too many open files")
            return accept()

        def __getattr__(self, name: str) -> object:
            return getattr(plain, name)

    plain, listener._socket = listener._socket, Crowded()  # type: ignore[assignment]
    listener.start(lambda link, who: link.send(link.receive(decode_message)))
    link = dial(Address(LOOPBACK, listener.port, token), Who("node", "here"), SILENCE_S)
    link.send(Who("node", "there"))
    assert link.receive(decode_message) == Who("node", "there") and next(fails, None) is None
    link.close()
    listener.close()
