"""Parts of files below a URL or a folder, for stores that lie there."""

from __future__ import annotations

from dataclasses import dataclass, field

from cordee.core.errors import DataError
from cordee.feed.filesystem.find import filesystem_of
from cordee.feed.filesystem.seam import without_query
from cordee.feed.store.layout import MANIFEST


@dataclass(frozen=True)
class Below:
    """Brings bytes of files: on S3, HDFS or the web, or in a slow folder. All of them of the same store.

    A build that replaces a store writes its manifest too: it is looked at again with the first bytes of each file.
    """

    url: str
    _marks: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Of the files that were read, also by the process that sent this."""

    def __call__(self, path: str, start: int, count: int) -> bytes:
        """Of one file; what follows `?` in the URL is given with each."""
        url = self._url_of(path)
        data, mark = filesystem_of(url).part(url, start, count)
        if path not in self._marks and MANIFEST in self._marks:
            now = filesystem_of(url).look(self._url_of(MANIFEST))
            self._compare(MANIFEST, "" if now is None else now.mark)
        self._compare(path, mark)
        return data

    def _url_of(self, path: str) -> str:
        base, sign, query = self.url.partition("?") if self.url.startswith("http") else (self.url, "", "")
        return f"{base.rstrip('/')}/{path}{sign}{query}"

    def _compare(self, path: str, mark: str) -> None:
        if self._marks.setdefault(path, mark) != mark:
            raise DataError(
                f"{without_query(self._url_of(path))} was replaced while the store was read: a run needs the same rows "
                "to its end. Start again with what is there now, and give a changed store a URL of its own"
            )
