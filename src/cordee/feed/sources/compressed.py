"""Raw files as they are read: plain, or unpacked on the way where they are gzip'ed."""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from cordee.core.errors import DataError
from cordee.feed.places import Place

_GZIP = b"\x1f\x8b"
BLOCK = 1 << 22
"""Bytes that are read at once."""


def is_packed(place: Place) -> bool:
    """Whether a file's bytes begin as gzip's do."""
    with place.open() as raw:
        return raw.read(2) == _GZIP


@contextmanager
def opened(place: Place) -> Iterator[BinaryIO]:
    """A file's bytes, unpacked if they begin as gzip's do; what cannot be read names the file."""
    try:
        with place.open() as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            if not packed:
                yield raw
                return
            with gzip.GzipFile(fileobj=raw) as file:
                yield cast(BinaryIO, io.BufferedReader(file, BLOCK))
    except FileNotFoundError as error:
        raise DataError(f"{place.shown} is not there any more: it was found when the sources were listed") from error
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{place.shown} cannot be read ({error}): damaged or not whole, fetch it again") from error
