"""Where raw data lies: files and objects, on this host or elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO


@dataclass(frozen=True)
class Place:
    """One file or object."""

    url: str
    """An absolute path, or a URL such as `s3://bucket/key`."""
    key: str
    """Its path below what the user named: the same on each host, wherever that has the data."""
    size: int
    """In bytes."""
    mark: str
    """Changes when its bytes do: the time of the last change, or the tag that a server gives it."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.url.rpartition("/")[2]

    def open(self) -> BinaryIO:
        """For reading, at any offset."""
        return Path(self.url).open("rb")
