"""Hosts and senders that end, or hang, while files are on their way: the others get all, and nothing comes twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordee.feed.exchange import send as module
from cordee.feed.exchange.access import Access
from cordee.feed.exchange.send import Sent, send
from exchanging import ACCESS, Gated, came, files_below, make_folder, receivers
from harness import DEADLINE_S, JOBS, command, start, until

SIZE, HALF = 6_000_000, 2_500_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "data", {"x": SIZE, "y": 100_000})


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The sender has `HALF` of each file until this is set."""
    gate = threading.Event()
    monkeypatch.setattr(Gated, "gate", gate)
    monkeypatch.setattr(Gated, "limit", HALF)
    monkeypatch.setattr(module, "Folder", Gated)
    yield gate
    gate.set()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(ACCESS.token)
    path.chmod(0o600)
    return path


def sending(data: Path, places: list[str], access: Access = ACCESS) -> tuple[threading.Thread, list[Sent]]:
    sent: list[Sent] = []
    thread = threading.Thread(target=lambda: sent.append(send(data, places, how="chain", access=access)))
    thread.start()
    return thread, sent


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_host_in_the_middle(
    number: signal.Signals, data: Path, token: Path, gated: threading.Event, tmp_path: Path
) -> None:
    access = Access(ACCESS.token, 2.0)
    middle = start("data", "receive", tmp_path / "m", "--listen", "127.0.0.1:0", "--token-file", token)
    assert middle.stdout is not None
    place = middle.stdout.readline().split()[2]
    try:
        with receivers(tmp_path, 2, access) as (first, last):
            thread, sent = sending(data, [first.place, place, last.place], access)
            until(lambda: came(tmp_path / "1") >= HALF)
            os.kill(middle.pid, number)
            gated.set()
            thread.join(DEADLINE_S)
            assert [one.complete for one in sent[0].outcomes] == [True, False, True]
            assert [one.received for one in sent[0].outcomes] == [SIZE + 100_000, 0, SIZE + 100_000], "nothing twice"
            for name in "01":
                assert files_below(tmp_path / name / "data") == files_below(data)
    finally:
        middle.kill()
        middle.communicate(timeout=DEADLINE_S)


def test_a_connection_that_is_lost_between_two_hosts_that_live(
    data: Path, gated: threading.Event, tmp_path: Path
) -> None:
    """The one that is left out does not disturb the one that goes on in its place."""
    with receivers(tmp_path, 3) as hosts:
        thread, sent = sending(data, [one.place for one in hosts])
        until(lambda: came(tmp_path / "2") >= HALF)
        link = hosts[1]._deliveries["data"]._link
        assert link is not None
        link.cut()
        gated.set()
        thread.join(DEADLINE_S)
        assert [one.complete for one in sent[0].outcomes] == [True, False, True]
        assert sent[0].outcomes[2].received == SIZE + 100_000, "nothing twice"
        for name in "02":
            assert files_below(tmp_path / name / "data") == files_below(data)


def test_a_sender_that_is_killed_and_sends_again(data: Path, token: Path, tmp_path: Path) -> None:
    with receivers(tmp_path, 2) as hosts:
        places = [one.place for one in hosts]
        words = [sys.executable, JOBS / "half_sent.py", token, data, HALF, *places]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(JOBS.parent), os.environ.get("PYTHONPATH", "")]),
        }
        with subprocess.Popen([*map(str, words)], env=environment) as sender:
            until(lambda: came(tmp_path / "1") >= HALF)
            sender.kill()
        for host in hosts:
            (delivery,) = host.wait(1, DEADLINE_S)
            assert not delivery.own.complete and "the sender was lost" in delivery.own.reason
        assert files_below(tmp_path / "0/data").keys() == files_below(tmp_path / "1/data").keys()
        again = send(data, places, how="chain", access=ACCESS)
        assert again.complete
        assert [one.had for one in again.outcomes] == [HALF, HALF]
        assert again.sent == SIZE + 100_000 - HALF
        for name in "01":
            assert files_below(tmp_path / name / "data") == files_below(data)


def test_a_disk_that_is_full(data: Path, token: Path, tmp_path: Path) -> None:
    """Files of this process may have a megabyte: the host says so and ends; the one behind it gets all."""
    words = [sys.executable, "-m", "cordee", "data", "receive", tmp_path / "full", "--listen", "127.0.0.1:0"]
    limited = ["bash", "-c", 'ulimit -f 1024; exec "$@"', "bash", *map(str, [*words, "--token-file", token])]
    with (
        receivers(tmp_path, 1) as (last,),
        subprocess.Popen(limited, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as full,
    ):
        assert full.stdout is not None
        place = full.stdout.readline().split()[2]
        sent = send(data, [place, last.place], how="chain", access=ACCESS)
        _, complaint = full.communicate(timeout=DEADLINE_S)
    assert [one.complete for one in sent.outcomes] == [False, True]
    assert "File too large" in sent.outcomes[0].reason
    assert full.returncode == 11 and "File too large" in complaint
    assert files_below(tmp_path / "0/data") == files_below(data)
    done = command("data", "send", data, "--to", place, "--token-file", token)
    assert done.returncode == 11 and "cannot be reached" in done.stderr
