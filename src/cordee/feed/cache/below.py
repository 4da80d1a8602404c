"""Parts of files below a URL or a folder, for stores that lie there."""

from __future__ import annotations

from dataclasses import dataclass

from cordee.feed.filesystem.find import filesystem_of


@dataclass(frozen=True)
class Below:
    """Brings bytes of files: on S3, HDFS or the web, or in a slow folder."""

    url: str

    def __call__(self, path: str, start: int, count: int) -> bytes:
        """Of one file; what follows `?` in the URL is given with each."""
        base, mark, query = self.url.partition("?") if self.url.startswith("http") else (self.url, "", "")
        return filesystem_of(self.url).part(f"{base.rstrip('/')}/{path}{mark}{query}", start, count)
