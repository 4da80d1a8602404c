"""Files in object stores and on HDFS, by pyarrow's own file systems: `s3://bucket/key`, `hdfs://host:port/path`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, BinaryIO

from cordee.core.errors import DataError
from cordee.feed.filesystem import seam
from cordee.feed.filesystem.ahead import read_ahead
from cordee.feed.filesystem.seam import Entry

_DENIED = ("ACCESS_DENIED", "HTTP status 403", "HTTP status 401", "INVALID_ACCESS_KEY", "SIGNATURE", "FORBIDDEN")
_ABSENT = ("NO_SUCH_BUCKET", "Bucket does not exist", "The specified bucket does not exist")


class ArrowFiles:
    """Keys of buckets, or paths of HDFS."""

    def look(self, url: str) -> Entry | None:
        """What is there; None if nothing is in a bucket that is there."""
        files, path = _opened(url)
        with _naming(url):
            info = files.get_file_info(path)
            bucket = path.partition("/")[0]
            if info.type.name != "NotFound":
                return _entry(url, info)
            if url.startswith("s3://") and files.get_file_info(bucket).type.name == "NotFound":
                raise _no_bucket(url)
        return None

    def children(self, url: str) -> list[Entry]:
        """What lies directly in a folder."""
        return self._listed(url, recursive=False)

    def below(self, url: str) -> list[Entry]:
        """All files in a folder and the folders in it: one request per thousand."""
        return [entry for entry in self._listed(url, recursive=True) if not entry.folder]

    def open(self, url: str, size: int, mark: str) -> BinaryIO:
        """Read in blocks, the next ones ahead."""
        files, path = _opened(url)
        with _naming(url):
            file = files.open_input_file(path)

        def fetch(start: int, count: int) -> bytes:
            with _naming(url):
                data: bytes = file.read_at(count, start)
                return data

        return read_ahead(fetch, size, url)

    def part(self, url: str, start: int, count: int) -> tuple[bytes, str]:
        """Read at an offset. A file that was opened lately is opened again only if it is another one now."""
        now = self.look(url)
        mark = "" if now is None else now.mark
        with _naming(url):
            file = _input(url, mark, *_environment())
            data: bytes = file.read_at(file.size() - start if count < 0 else count, start)
        return data, mark

    def _listed(self, url: str, *, recursive: bool) -> list[Entry]:
        from pyarrow.fs import FileSelector

        files, path = _opened(url)
        with _naming(url):
            infos = files.get_file_info(FileSelector(path, recursive=recursive))
        return [_entry(f"{url.rstrip('/')}{info.path[len(path.rstrip('/')) :]}", info) for info in infos]


def _entry(url: str, info: Any) -> Entry:
    if info.type.name == "Directory":
        return Entry(url.rstrip("/"), True)
    return Entry(url, False, info.size, str(info.mtime_ns))


def _opened(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    scheme, _, rest = url.partition("://")
    if scheme == "s3":
        return _s3(seam.DEADLINE_S, *_environment()), rest.rstrip("/")
    host, _, path = rest.partition("/")
    return _hdfs(host), f"/{path}"


def _environment() -> tuple[str, ...]:
    """What the environment says of S3."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION")
    # The credentials are read by the library; they stand here so that others make another file system.
    secrets = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")
    return tuple(os.environ.get(one, "") for one in (*names, *secrets))


@lru_cache(maxsize=256)
def _input(url: str, mark: str, *environment: str) -> Any:
    """An open file; `mark` and `environment` tell apart what lay there before, or lies at another server."""
    files, path = _opened(url)
    return files.open_input_file(path)


@lru_cache(maxsize=8)
def _s3(deadline_s: float, *environment: str) -> Any:
    try:
        from pyarrow import fs
    except ImportError:
        raise _without_library("s3://") from None
    endpoint, region = environment[0] or environment[1], environment[2] or environment[3]
    settings: dict[str, Any] = {"region": region} if region or endpoint else {}
    if endpoint:
        scheme, found, host = endpoint.rpartition("://")
        settings |= {"endpoint_override": host.rstrip("/"), "scheme": scheme if found else "https"}
        settings["region"] = region or "us-east-1"
    return fs.S3FileSystem(
        connect_timeout=deadline_s / 3,
        request_timeout=deadline_s,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=3),
        **settings,
    )


@lru_cache(maxsize=8)
def _hdfs(host: str) -> Any:
    try:
        from pyarrow import fs
    except ImportError:
        raise _without_library("hdfs://") from None
    name, _, port = host.partition(":")
    try:
        return fs.HadoopFileSystem(name or "default", int(port or 0))
    except OSError as error:
        raise DataError(
            f"hdfs://{host} cannot be opened ({str(error).splitlines()[0]}): Hadoop's own library is needed on this "
            "host; set JAVA_HOME, HADOOP_HOME and ARROW_LIBHDFS_DIR, and CLASSPATH=$(hadoop classpath --glob)"
        ) from None


def _without_library(scheme: str) -> DataError:
    return DataError(f"{scheme} needs pyarrow, which is not installed here: pip install 'cordee[data]'")


def _no_bucket(url: str) -> DataError:
    bucket = url.partition("://")[2].partition("/")[0]
    return DataError(f"there is no bucket {bucket!r} at {_server()} (or these credentials may not see it)")


def _server() -> str:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "AWS"


@contextmanager
def _naming(url: str) -> Iterator[None]:
    """Errors of the libraries below, in words that a user can act on."""
    try:
        yield
    except PermissionError:
        raise _denied(url) from None
    except OSError as error:
        text = str(error)
        if any(one in text for one in _DENIED):
            raise _denied(url) from None
        if any(one in text for one in _ABSENT):
            raise _no_bucket(url) from None
        if url.startswith("s3://") and ("NETWORK_CONNECTION" in text or "curlCode" in text or "imeout" in text):
            raise DataError(
                f"{_server()} cannot be reached for {url} ({text.rpartition(': ')[2]}): check the network and "
                "AWS_ENDPOINT_URL"
            ) from None
        raise DataError(f"{url} cannot be read: {text}") from None


def _denied(url: str) -> DataError:
    variables = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION"
    hint = f"check {variables}" if url.startswith("s3://") else "give this user the right to read it"
    return DataError(f"no permission to read {url}: {hint}")
