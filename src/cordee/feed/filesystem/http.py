"""Files on web servers, by the standard library: ranges where the server gives them, else a copy on local disk."""

from __future__ import annotations

import http.client
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from typing import Any, BinaryIO, cast

from cordee.core.errors import DataError
from cordee.feed.filesystem import ahead, seam
from cordee.feed.filesystem.ahead import read_ahead
from cordee.feed.filesystem.seam import Entry, without_query

_ALL = 2**50
"""Bytes that no file has."""
_AGAIN = (408, 429, 500, 502, 503, 504)


class HttpFiles:
    """Single files behind `http://` and `https://`: a web server has no folders that could be listed."""

    def look(self, url: str) -> Entry | None:
        """Its size and mark; None if the server does not have it."""
        with _asked(url, 0, 1) as answer:
            return None if answer is None else Entry(url, False, _size(answer, url), _mark(answer.headers))

    def children(self, url: str) -> list[Entry]:
        """Refused."""
        raise DataError(f"{without_query(url)}: a web server cannot list its files; name each of them: [url, url, ...]")

    def below(self, url: str) -> list[Entry]:
        """Refused."""
        return self.children(url)

    def open(self, url: str, size: int, mark: str) -> BinaryIO:
        """Read by ranges; of a server without them the whole file is fetched at once, to a nameless file on disk."""
        with _asked(url, 0, ahead.BLOCK) as answer:
            if answer is None:
                raise DataError(f"{without_query(url)} is not there any more: it was when the data was looked at")
            _same(answer, url, size, mark)
            if answer.status == 200 and size > 0:
                return _copied(answer, url, size)
            first = answer.read() if size else b""

        def fetch(start: int, count: int) -> bytes:
            return _range(url, start, count, size, mark)

        return read_ahead(fetch, size, without_query(url), first)

    def part(self, url: str, start: int, count: int) -> bytes:
        """By a range; of a server without them the whole file comes each time. Once more if the connection breaks."""
        until = time.monotonic() + seam.DEADLINE_S
        while True:
            try:
                with _asked(url, start, _ALL if count < 0 else count) as answer:
                    if answer is None:
                        raise DataError(f"{without_query(url)} is not there (HTTP 404)")
                    data: bytes = answer.read() if answer.status in (200, 206) else b""
                    return data if answer.status == 206 else data[start:][: None if count < 0 else count]
            except (OSError, http.client.HTTPException) as error:
                if time.monotonic() > until:
                    raise _unreachable(url, error) from None
                time.sleep(0.2)


def _range(url: str, start: int, count: int, size: int, mark: str) -> bytes:
    """Part of a file; once more if the connection breaks."""
    until = time.monotonic() + seam.DEADLINE_S
    while True:
        try:
            with _asked(url, start, count) as answer:
                if answer is None or answer.status != 206:
                    raise _changed(url)
                _same(answer, url, size, mark)
                data: bytes = answer.read()
                return data
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() > until:
                raise _unreachable(url, error) from None
            time.sleep(0.2)


@contextmanager
def _asked(url: str, start: int, count: int) -> Iterator[Any]:
    """The answer to a request for part of a file; None for 404. A server that is busy is asked again."""
    until = time.monotonic() + seam.DEADLINE_S
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-{start + count - 1}"})
    while True:
        wait = max(0.1, min(seam.DEADLINE_S / 2, until - time.monotonic()))
        try:
            answer = urllib.request.urlopen(request, timeout=wait)
            break
        except urllib.error.HTTPError as error:
            if error.code in (404, 410):
                answer = None
                break
            if error.code == 416:  # an empty file has no first byte
                answer = error
                break
            if error.code not in _AGAIN or time.monotonic() > until:
                raise _refused(url, error) from None
        except (http.client.HTTPException, ValueError) as error:
            raise DataError(f"{without_query(url)} cannot be asked for: {error}") from None
        except OSError as error:
            if time.monotonic() > until or isinstance(getattr(error, "reason", None), ConnectionRefusedError):
                raise _unreachable(url, error) from None
        time.sleep(0.2)
    try:
        yield answer
    finally:
        if answer is not None:
            answer.close()


def _size(answer: Any, url: str) -> int:
    if answer.status in (206, 416):
        whole = answer.headers.get("Content-Range", "").rpartition("/")[2]
    else:
        whole = answer.headers.get("Content-Length", "")
    if not whole.isdigit():
        raise DataError(
            f"the server of {without_query(url)} does not say how long the file is (no Content-Length): fetch the file "
            "first, and give its path"
        )
    return int(whole)


def _mark(headers: Message) -> str:
    return headers.get("ETag") or headers.get("Last-Modified") or ""


def _same(answer: Any, url: str, size: int, mark: str) -> None:
    if _size(answer, url) != size or _mark(answer.headers) != mark:
        raise _changed(url)


def _copied(answer: Any, url: str, size: int) -> BinaryIO:
    copy = cast(BinaryIO, tempfile.TemporaryFile(prefix="cordee-"))  # noqa: SIM115
    try:
        shutil.copyfileobj(answer, copy, ahead.BLOCK)
        if copy.tell() != size:
            raise DataError(f"{without_query(url)} broke off after {copy.tell()} of {size} bytes; start again")
        copy.seek(0)
        return copy
    except BaseException as error:
        copy.close()
        if isinstance(error, OSError | http.client.HTTPException):
            raise DataError(f"{without_query(url)} broke off: {error}; start again") from None
        raise


def _changed(url: str) -> DataError:
    return DataError(f"{without_query(url)} was changed while it was read; start again")


def _refused(url: str, error: urllib.error.HTTPError) -> DataError:
    if error.code in (401, 403):
        return DataError(
            f"no permission to read {without_query(url)} (HTTP {error.code}): log in where it comes from and give the "
            "link that is made there, or fetch it first and give its path"
        )
    return DataError(f"the server of {without_query(url)} answered HTTP {error.code} {error.reason}")


def _unreachable(url: str, error: Exception) -> DataError:
    reason = getattr(error, "reason", None) or error
    return DataError(
        f"the server of {without_query(url)} cannot be reached ({reason}): check the address, or whether a proxy is "
        "needed (https_proxy)"
    )
