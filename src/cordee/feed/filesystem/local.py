"""Files on disks of this host, or mounted there."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from cordee.core.errors import DataError
from cordee.feed.filesystem.seam import Entry


class LocalFiles:
    """Paths of this host. Links are followed; a folder that leads back into itself is entered once."""

    def look(self, url: str) -> Entry | None:
        """What is there; None if nothing is."""
        try:
            with _naming(url):
                return _entry(url, os.stat(url))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def children(self, url: str) -> list[Entry]:
        """What lies directly in a folder; links to nothing, pipes and devices are left out."""
        with _naming(url):
            names = os.listdir(url)
        return [entry for name in names if (entry := _child(f"{url.rstrip('/')}/{name}")) is not None]

    def below(self, url: str) -> list[Entry]:
        """All files in a folder and the folders in it."""
        files, folders, seen = [], [url], set()
        while folders:
            folder = folders.pop()
            place = os.path.realpath(folder)
            if place in seen:
                continue
            seen.add(place)
            for entry in self.children(folder):
                if entry.folder:
                    folders.append(entry.url)
                else:
                    files.append(entry)
        return files

    def open(self, url: str, size: int, mark: str) -> BinaryIO:
        """For reading; what changed since it was looked at is read as it is now."""
        try:
            with _naming(url):
                return Path(url).open("rb")
        except FileNotFoundError:
            raise DataError(f"{url} is not there any more: it was when the data was looked at") from None

    def part(self, url: str, start: int, count: int) -> tuple[bytes, str]:
        """Some bytes of a file, and its mark."""
        with self.open(url, 0, "") as file, _naming(url):
            file.seek(start)
            return file.read(count), _entry(url, os.fstat(file.fileno())).mark


def _child(url: str) -> Entry | None:
    try:
        with _naming(url):
            found = os.stat(url)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _entry(url, found) if stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode) else None


def _entry(url: str, found: os.stat_result) -> Entry:
    if stat.S_ISDIR(found.st_mode):
        return Entry(url, True)
    if not stat.S_ISREG(found.st_mode):
        raise DataError(f"{url} is neither a file nor a folder (a pipe or a device): write its bytes to a file first")
    return Entry(url, False, found.st_size, str(found.st_mtime_ns))


@contextmanager
def _naming(url: str) -> Iterator[None]:
    try:
        yield
    except PermissionError:
        raise DataError(f"no permission to read {url}: give this user the right to (chmod, chown)") from None
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        if error.errno == errno.ELOOP:  # it leads nowhere
            raise FileNotFoundError(error.errno, error.strerror, url) from None
        raise DataError(f"{url} cannot be read: {error.strerror or error}") from None
