"""What any place of files can do: look at a path, list a folder, open a file."""

from __future__ import annotations

import re
from typing import BinaryIO, NamedTuple, Protocol

DEADLINE_S = 30.0
"""A server that has not answered for so long is reported as unreachable."""


class Entry(NamedTuple):
    """A file or a folder."""

    url: str
    """An absolute path, or a URL; without a slash at its end."""
    folder: bool
    size: int = 0
    mark: str = ""
    """Of a file: changes when its bytes do."""

    @property
    def name(self) -> str:
        """The last part of its path."""
        return without_query(self.url).rpartition("/")[2]


class Filesystem(Protocol):
    """Files of one kind of place. Errors are `DataError`, and no secret of a URL stands in them."""

    def look(self, url: str) -> Entry | None:
        """What is there; None if nothing is. No permission, no such bucket, no answer in time: an error."""
        ...

    def children(self, url: str) -> list[Entry]:
        """What lies directly in a folder, in any order."""
        ...

    def below(self, url: str) -> list[Entry]:
        """All files in a folder and the folders in it, in any order."""
        ...

    def open(self, url: str, size: int, mark: str) -> BinaryIO:
        """A file of this size and mark, for reading at any offset."""
        ...

    def part(self, url: str, start: int, count: int) -> tuple[bytes, str]:
        """Up to `count` bytes of a file from `start` on, all that follow if `count` is -1; with the file's mark."""
        ...


def without_query(url: str) -> str:
    """A URL as it may be shown: without what follows `?`, and without user and password."""
    if not re.match(r"(?i)https?://", url):
        return url
    scheme, _, rest = re.split(r"[?#]", url, maxsplit=1)[0].partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
