"""A far file as an ordinary one: read in large blocks, and the next ones are fetched before they are asked for."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO, cast

from cordee.core.errors import DataError

BLOCK = 4 << 20
"""Bytes of one request: a round trip of 50 ms then costs little."""
AHEAD = 2
"""Blocks fetched beyond the one that is read, where a file is read from front to back."""
KEPT = 2
"""Blocks that stay in memory behind it."""

Fetch = Callable[[int, int], bytes]
"""The bytes from an offset on, so many."""


def read_ahead(fetch: Fetch, size: int, name: str, first: bytes | None = None) -> BinaryIO:
    """A file of `size` bytes, of which `fetch` gets any part; `first` is its first block if that is there already."""
    return cast(BinaryIO, io.BufferedReader(ReadAhead(fetch, size, name, first), 1 << 17))


class ReadAhead(io.RawIOBase):
    """Bytes by offset from blocks. At most `KEPT + AHEAD + 1` blocks are in memory, 20 MiB."""

    def __init__(self, fetch: Fetch, size: int, name: str, first: bytes | None = None) -> None:
        """Nothing is fetched before it is read."""
        self._fetch, self._size, self._name = fetch, size, name
        self._at, self._last = 0, -1
        self._pool = ThreadPoolExecutor(AHEAD, "read-ahead")
        self._blocks: dict[int, Future[bytes]] = {}
        if first is not None and size:
            self._blocks[0] = Future()
            self._blocks[0].set_result(first)

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The offset that is read next."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to an offset."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Up to as many bytes as fit; 0 at the end."""
        if self._at >= self._size:
            return 0
        number, inside = divmod(self._at, BLOCK)
        part = self._block(number)[inside : inside + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)

    def close(self) -> None:
        """Blocks that are on their way are of no use any more."""
        if not self.closed:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._blocks.clear()
        super().close()

    def _block(self, number: int) -> bytes:
        onwards = number in (self._last, self._last + 1)
        self._last = number
        for wanted in range(number, number + 1 + (AHEAD if onwards else 0)):
            if wanted not in self._blocks and wanted * BLOCK < self._size:
                self._blocks[wanted] = self._pool.submit(self._whole, wanted)
        for old in [one for one in self._blocks if not number - KEPT <= one <= number + AHEAD]:
            self._blocks.pop(old).cancel()
        try:
            return self._blocks[number].result()
        except BaseException:
            self._blocks.pop(number, None)
            raise

    def _whole(self, number: int) -> bytes:
        start = number * BLOCK
        wanted = min(BLOCK, self._size - start)
        got = self._fetch(start, wanted)
        if len(got) != wanted:
            raise DataError(
                f"{self._name} gave {len(got)} bytes at {start} where {wanted} were expected: it was changed while it "
                "was read, or its server breaks off; start again"
            )
        return got
