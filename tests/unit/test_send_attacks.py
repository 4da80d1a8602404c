"""What strangers and broken peers send to a host that receives is refused; nothing is written outside its folder."""

from __future__ import annotations

import contextlib
import random
import secrets
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordee.feed.exchange import messages as said
from cordee.feed.exchange.access import Access
from cordee.feed.exchange.listing import Checksum, Entry
from cordee.feed.exchange.receiver import Receiver
from cordee.feed.exchange.send import send
from cordee.group.bulk import Gone, Link
from cordee.group.wire import LOOPBACK, pack
from exchanging import ACCESS, files_below, make_folder, receivers

ID = "a" * 32


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Receiver]:
    """A host that receives into `0`, and is still well at the end; beside it nothing has come."""
    outside = make_folder(tmp_path, {"secret": 10})
    before = set(files_below(outside))
    with receivers(tmp_path, 1) as (one,):
        yield one
        good = make_folder(tmp_path / "good", {"x": 2_000_000})
        assert send(good, [one.place], access=ACCESS).complete
        assert files_below(tmp_path / "0/good") == files_below(good)
    new = {name for name in files_below(tmp_path) if not name.startswith(("0/", "good/"))}
    assert new == before


def checked(data: bytes) -> str:
    check = Checksum("sha256:")
    check.add(data)
    return check.text


def offered(link: Link, entries: list[Entry], name: str = "bad") -> said.Exchanged:
    """What a host says to an offer."""
    link.send(said.Offer(ID, name, "here:1", [], len(entries), True))
    link.send(said.Entries(entries))
    while isinstance(answer := link.receive(said.decode), said.Alive):
        pass
    return answer


@contextlib.contextmanager
def dialled(host: Receiver) -> Iterator[Link]:
    with contextlib.closing(ACCESS.dial(host.place)) as link:
        yield link


def test_without_the_token(host: Receiver, tmp_path: Path) -> None:
    data = make_folder(tmp_path / "0/mine", {"x": 10})
    sent = send(data, [host.place], access=Access(secrets.token_hex(32), 5.0))
    assert not sent.complete and "token" in sent.outcomes[0].reason


def test_garbage_before_and_after_the_token(host: Receiver) -> None:
    draw = random.Random(0)
    address = (LOOPBACK, int(host.place.rpartition(":")[2]))
    messages = [
        said.Alive(),
        said.Piece(0, 0, 1),
        said.Finished(),
        said.Ask(""),
        said.Lacks([(0, 0)], False),
        said.Offer(ID, "x", "here:1", [], 1, True),
        said.Entries([Entry("x", 1, "crc32:00000000")]),
    ]
    for case in range(120):
        raw = draw.randbytes(draw.choice([1, 4, 5, 100, 5000]))
        if case % 3 == 1:
            raw = struct.pack("!I", 2**31) + raw
        if case % 3 == 2:
            raw = pack(draw.choice(messages))[: draw.randrange(1, 60)] + raw
        with contextlib.suppress(OSError):
            if case % 2:
                with socket.create_connection(address) as sock:
                    sock.sendall(raw)
            else:
                with dialled(host) as link:
                    link._sock.sendall(raw)
                    link.send(draw.choice(messages))


@pytest.mark.parametrize("name", ["..", "/etc", "a/b", ".", ".cordee-part-1", "x\0", "x\n"])
def test_a_folder_elsewhere(host: Receiver, name: str) -> None:
    with dialled(host) as link:
        answer = offered(link, [Entry("x", 1, "crc32:00000000")], name)
        assert isinstance(answer, said.Failed) and "name of a folder" in answer.reason


@pytest.mark.parametrize("path", ["../secret", "/etc/x", "a/../../secret", "a//b", "x\0", ".."])
def test_a_path_elsewhere(host: Receiver, path: str) -> None:
    with dialled(host) as link:
        answer = offered(link, [Entry(path, 1, "crc32:00000000")])
        assert isinstance(answer, said.Failed) and "stay within" in answer.reason


def test_links_on_the_way_are_not_followed(host: Receiver, tmp_path: Path) -> None:
    (tmp_path / "0/bad").mkdir()
    (tmp_path / "0/bad/sub").symlink_to(tmp_path)
    with dialled(host) as link:
        answer = offered(link, [Entry("sub/secret", 1, checked(b"y"))])
        assert isinstance(answer, said.Failed) and "sub" in answer.reason
    (tmp_path / "0/worse").symlink_to(tmp_path)
    with dialled(host) as link:
        answer = offered(link, [Entry("secret", 1, checked(b"y"))], "worse")
        assert isinstance(answer, said.Failed) and "worse" in answer.reason


def test_a_link_in_place_of_a_file_is_replaced_not_followed(host: Receiver, tmp_path: Path) -> None:
    (tmp_path / "0/bad").mkdir()
    (tmp_path / "0/bad/x").symlink_to(tmp_path / "secret")
    before = (tmp_path / "secret").read_bytes()
    with dialled(host) as link:
        assert offered(link, [Entry("x", 1, checked(b"y"))]) == said.Lacks([(0, 0)], False)
        link.send(said.Piece(0, 0, 1), [memoryview(b"y")])
        link.send(said.Finished())
        while isinstance(report := link.receive(said.decode), said.Alive):
            pass
        assert isinstance(report, said.Report) and report.outcomes[0].complete
    assert (tmp_path / "secret").read_bytes() == before
    assert (tmp_path / "0/bad/x").read_bytes() == b"y" and not (tmp_path / "0/bad/x").is_symlink()


@pytest.mark.parametrize(
    ("piece", "data"),
    [
        (said.Piece(0, 0, 200), bytes(200)),  # longer than announced
        (said.Piece(0, 50, 10), bytes(10)),  # with a gap
        (said.Piece(7, 0, 10), bytes(10)),  # of a file that was not offered
        (said.Piece(0, 0, 100), bytes(100)),  # other bytes
    ],
    ids=["longer", "gap", "unknown", "checksum"],
)
def test_bytes_that_were_not_announced(host: Receiver, tmp_path: Path, piece: said.Piece, data: bytes) -> None:
    with dialled(host) as link:
        assert isinstance(offered(link, [Entry("x", 100, checked(b"y" * 100))]), said.Lacks)
        link.send(piece, [memoryview(data)])
        with contextlib.suppress(Gone):
            while isinstance(answer := link.receive(said.decode), said.Alive):
                pass
            assert isinstance(answer, said.Failed), answer
    (delivery,) = host.wait(1, 20)
    assert not delivery.own.complete
    assert files_below(tmp_path / "0") in ({}, {"bad/x": b""}), "no such file is there"


def test_a_sender_that_says_it_is_done_too_early(host: Receiver, tmp_path: Path) -> None:
    with dialled(host) as link:
        assert isinstance(offered(link, [Entry("x", 100, checked(b"y" * 100))]), said.Lacks)
        link.send(said.Finished())
        answer = link.receive(said.decode)
        assert isinstance(answer, said.Failed) and "not whole" in answer.reason
    assert files_below(tmp_path / "0") == {}


def test_more_than_the_disk_has_room_for(host: Receiver) -> None:
    with dialled(host) as link:
        answer = offered(link, [Entry("x", 1 << 49, checked(b"y"))])
        assert isinstance(answer, said.Failed) and "no room" in answer.reason
