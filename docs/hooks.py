"""What MkDocs calls while it builds the site: links to files of the repository lead to copies within the site.

A page of `docs/` links to a benchmark, a test or an example by its path, so that the link works wherever the
repository is read. The site has only what lies in `docs/`; each such file becomes a page under `source/`.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<=\]\()(?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?(?=\))")
LANGUAGES = {".py": "python", ".json": "json", ".yml": "yaml", ".toml": "toml"}


def on_files(files: Files, config: Any) -> Files:
    """Add a page for every file outside `docs/` that a page links to."""
    for file in list(files.documentation_pages()):
        for link in LINK.finditer(file.content_string):
            path = _outside(file.src_uri, link["path"])
            if path is not None and files.get_file_from_path(f"source/{path}.md") is None:
                files.append(File.generated(config, f"source/{path}.md", content=_shown(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links that lead out of `docs/` to those pages."""
    here = page.file.src_uri

    def turned(link: re.Match[str]) -> str:
        path = None if here.startswith("source/") else _outside(here, link["path"])
        if path is None:
            return link[0]
        return posixpath.relpath(f"source/{path}.md", posixpath.dirname(here)) + (link["anchor"] or "")

    return LINK.sub(turned, markdown)


def _outside(page: str, link: str) -> str | None:
    """The path from the repository's root of a file that is there but not in `docs/`."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return path if not path.startswith(("docs/", "../")) and (ROOT / path).is_file() else None


def _shown(path: str) -> str:
    """The file as a page; text that is Markdown already stays what it is."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"# {path}\n\n```{language}\n{text.rstrip()}\n```\n"
