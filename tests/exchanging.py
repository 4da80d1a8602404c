"""Hosts that receive files, within this process; and folders to send."""

from __future__ import annotations

import contextlib
import random
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

from cordee.feed.exchange.access import Access
from cordee.feed.exchange.forward import Folder
from cordee.feed.exchange.receiver import Receiver
from cordee.group.wire import LOOPBACK

ACCESS = Access(secrets.token_hex(32), 5.0)
ANYWHERE = f"{LOOPBACK}:0"


def files_below(folder: Path) -> dict[str, bytes]:
    """What a folder holds, but for the receiver's lock."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".cordee-receiving"
    }


def make_folder(folder: Path, sizes: dict[str, int], seed: int = 0) -> Path:
    """Files of random bytes."""
    draw = random.Random(seed)
    for name, size in sizes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw.randbytes(size))
    return folder


@contextlib.contextmanager
def receivers(folder: Path, count: int, access: Access = ACCESS) -> Iterator[list[Receiver]]:
    """So many hosts, each with a folder of its own: `0`, `1`, ..."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(contextlib.closing(Receiver(folder / str(number), ANYWHERE, access)))
            for number in range(count)
        ]


class Gated(Folder):
    """Files of which only the first `limit` bytes are there until `gate` is opened."""

    gate = threading.Event()
    limit = 0

    def available(self, number: int, offset: int, wait_s: float) -> int:
        whole = super().available(number, offset, wait_s)
        if offset < min(whole, self.limit) or self.gate.is_set():
            return whole if self.gate.is_set() else min(whole, self.limit)
        self.gate.wait(wait_s)
        return offset


def came(folder: Path) -> int:
    """Bytes of files that are not whole yet."""
    return sum(path.stat().st_size for path in folder.rglob(".cordee-part-*"))
