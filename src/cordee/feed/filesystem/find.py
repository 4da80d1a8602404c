"""Which file system a path or URL belongs to, and what matches a pattern there: the same rules for all of them."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Iterator
from fnmatch import fnmatchcase

from cordee.core.errors import DataError
from cordee.feed.filesystem.arrow import ArrowFiles
from cordee.feed.filesystem.http import HttpFiles
from cordee.feed.filesystem.local import LocalFiles
from cordee.feed.filesystem.seam import Entry, Filesystem, without_query

SCHEMES = ("s3", "hdfs", "http", "https")


def filesystem_of(url: str) -> Filesystem:
    """What reads a path or URL."""
    scheme = _scheme(url)
    if not scheme:
        return LocalFiles()
    if scheme in ("http", "https"):
        return HttpFiles()
    if scheme in SCHEMES:
        return ArrowFiles()
    known = ", ".join(f"{one}://" for one in SCHEMES)
    raise DataError(f"{scheme}:// is not known: give a path, or a URL of {known}")


def absolute(named: str) -> str:
    """What the user named as an absolute path or a URL, without a slash at its end."""
    scheme = _scheme(named)
    if scheme == "file":
        named = urllib.parse.unquote(urllib.parse.urlsplit(named).path)
    elif scheme in ("s3a", "s3n"):  # as Hadoop and Spark write it
        named = f"s3{named[len(scheme) :]}"
    elif scheme:
        return named if scheme in ("http", "https") else named.rstrip("/")
    return named.rstrip("/") if named.startswith("s3:") else os.path.abspath(os.path.expanduser(named))


def has_magic(url: str) -> bool:
    """Whether a path is a pattern. On the web `?` begins a query."""
    return any(one in without_query(url) for one in ("*[" if url.startswith("http") else "*?["))


def base_of(pattern: str) -> str:
    """The folder above a pattern's first part that is one."""
    head = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    return head.rpartition("/")[0] or "/"


def matching(files: Filesystem, pattern: str) -> list[Entry]:
    """Files and folders that match: `*`, `?` and `[abc]` within a name, `**` for any folders. Hidden ones do not."""
    base = base_of(pattern)
    parts = [part for part in pattern[len(base) :].split("/") if part]
    found = {entry.url: entry for entry in _expanded(files, base, parts)}
    return [found[url] for url in sorted(found)]


def hidden(name: str) -> bool:
    """Whether a file or folder is no data: `.crc`, `_SUCCESS`, `_temporary` and the like."""
    return name.startswith((".", "_"))


def _expanded(
    files: Filesystem, folder: str, parts: list[str], entered: frozenset[str] = frozenset()
) -> Iterator[Entry]:
    """`entered`: the folders that `**` has come through, which links may lead back to."""
    head, rest = parts[0], parts[1:]
    if not has_magic(head):
        entry = files.look(f"{folder.rstrip('/')}/{head}")
        if entry is not None and not rest:
            yield entry
        elif entry is not None and entry.folder:
            yield from _expanded(files, entry.url, rest)
        return
    if head == "**" and not rest:
        yield from (one for one in files.below(folder) if not _hidden_below(one.url, folder))
        return
    if head == "**":
        yield from _expanded(files, folder, rest)
    for entry in files.children(folder):
        if hidden(entry.name) and not (head[0] in "._" and head[0] == entry.name[0]):
            continue
        if head == "**":
            if entry.folder and _itself(entry.url) not in entered | {_itself(folder)}:
                yield from _expanded(files, entry.url, parts, entered | {_itself(folder)})
        elif fnmatchcase(entry.name, head):
            if not rest:
                yield entry
            elif entry.folder:
                yield from _expanded(files, entry.url, rest)


def _itself(folder: str) -> str:
    """A folder without links on the way to it."""
    return os.path.realpath(folder) if folder.startswith("/") else folder


def _hidden_below(url: str, folder: str) -> bool:
    return any(map(hidden, url[len(folder) :].strip("/").split("/")))


def _scheme(named: str) -> str:
    found = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]*)://", named)
    return found.group(1).lower() if found else ""
