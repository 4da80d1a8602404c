"""Files on web servers, by the standard library: ranges where the server gives them, else a copy on local disk."""

from __future__ import annotations

import base64
import http.client
import re
import shutil
import tempfile
import time
import urllib.error
import urllib.parse
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
            first = _first(answer, min(ahead.BLOCK, size))

        def fetch(start: int, count: int) -> bytes:
            data, found = _range(url, start, count)
            if found != (size, mark):
                raise _changed(url)
            return data

        return read_ahead(fetch, size, without_query(url), first)

    def part(self, url: str, start: int, count: int) -> tuple[bytes, str]:
        """By ranges; of a server without them the whole file comes each time."""
        data, (_, mark) = _range(url, start, _ALL if count < 0 else count)
        return data, mark


def _first(answer: Any, wanted: int) -> bytes | None:
    """The first block; None if it does not come whole: then it is asked for again."""
    try:
        data: bytes = answer.read()
    except (OSError, http.client.HTTPException):
        return None
    return data if len(data) == wanted else None


def _range(url: str, start: int, count: int) -> tuple[bytes, tuple[int, str]]:
    """Part of a file, up to its end; of which file, by size and mark.

    What is still lacking is asked for again: connections break, and servers may give less at once than was asked for.
    """
    until, data, known = time.monotonic() + seam.DEADLINE_S, b"", None
    while True:
        try:
            with _asked(url, start + len(data), count - len(data)) as answer:
                if answer is None:
                    raise DataError(f"{without_query(url)} is not there (HTTP 404)")
                came = answer.read() if answer.status in (200, 206) else b""
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() > until:
                raise _unreachable(url, error) from None
            time.sleep(0.2)
            continue
        if answer.status == 200:
            return came[start:][:count], (len(came), _mark(answer.headers))
        found = _size(answer, url), _mark(answer.headers)
        if known not in (None, found):
            raise _changed(url)
        known, wanted = found, min(count, max(0, found[0] - start))
        if came and _start(answer) != start + len(data):
            raise DataError(
                f"the server of {without_query(url)} gave other bytes than it was asked for: fetch the file first, and "
                "give its path"
            )
        data, until = (data + came)[:wanted], time.monotonic() + seam.DEADLINE_S
        if len(data) == wanted or not came:
            return data, found


@contextmanager
def _asked(url: str, start: int, count: int) -> Iterator[Any]:
    """The answer to a request for part of a file; None for 404. A server that is busy is asked again."""
    until = time.monotonic() + seam.DEADLINE_S
    request = _request(url)
    request.add_header("Range", f"bytes={start}-{start + count - 1}")
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
        except (http.client.InvalidURL, ValueError):  # what they say may hold secrets
            raise _no_url(url) from None
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() > until or isinstance(getattr(error, "reason", None), ConnectionRefusedError):
                raise _unreachable(url, error) from None
        time.sleep(0.2)
    try:
        yield answer
    finally:
        if answer is not None:
            answer.close()


def _request(url: str) -> urllib.request.Request:
    """For a URL; user and password in it are sent as basic authentication, and to no other server."""
    try:
        parts = urllib.parse.urlsplit(url)
        login, found, host = parts.netloc.rpartition("@")
        request = urllib.request.Request(parts._replace(netloc=host).geturl())
    except ValueError:
        raise _no_url(url) from None
    if found:
        token = base64.b64encode(urllib.parse.unquote_to_bytes(login)).decode()
        request.add_unredirected_header("Authorization", f"Basic {token}")
    return request


def _no_url(url: str) -> DataError:
    return DataError(
        f"{without_query(url)} cannot be asked for: a URL was expected, such as https://host:8080/folder/file; in it a "
        "space is %20"
    )


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


def _start(answer: Any) -> int:
    """Where the part begins that came."""
    begins = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    return int(begins[1]) if begins else -1


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
