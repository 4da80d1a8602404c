"""The pages: links lead somewhere, all are in the site, code compiles, commands exist, the reference is up to date."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from alone import Started
from cordee.cli.main import app
from shape.house import ROOT
from shape.pages import blocks, environment

DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
LINK = re.compile(r"\]\(([^()\s]+)\)|\b(?:src|href)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6} +(.*?)\s*$", re.M)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(text: str) -> str:
    """The page without code, in which brackets mean something else."""
    return re.sub(r"`[^`\n]*`", "code", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))


def links(text: str) -> Iterator[str]:
    """The targets of links and pictures that stay within the repository."""
    for found in LINK.finditer(prose(text)):
        target = found[1] or found[2]
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(text: str) -> set[str]:
    """What headings are called in a link, by GitHub's rule."""
    plain = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(plain)}


def broken(page: Path, text: str) -> list[str]:
    """Links of a page that lead nowhere, or to a place that GitHub and the site call by different names."""
    wrong = []
    for link in links(text):
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        there = target.exists() and ROOT in target.resolve().parents
        if there and anchor:
            there = anchor in anchors(target.read_text(encoding="utf-8") if path else text)
        if not there:
            wrong.append(link)
        elif "--" in anchor or not anchor.isascii():
            wrong.append(f"{link} (the site writes this anchor otherwise)")
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page, page.read_text(encoding="utf-8")) == []


def test_a_broken_link_is_seen() -> None:
    page = ROOT / "README.md"
    text = "# A, b.c\n[x](docs/nowhere.md) [y](#a-bc) [z](#b) `[code](no)` [w](https://example.org) [v](../../etc)"
    assert broken(page, text) == ["docs/nowhere.md", "#b", "../../etc"]
    assert broken(page, '<img src="docs/no.png">') == ["docs/no.png"]


def in_nav(entry: Any) -> Iterator[str]:
    """The pages below an entry of the site's table of contents."""
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from in_nav(inner)


def test_every_page_is_in_the_site_once() -> None:
    shown = list(in_nav(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    assert len(shown) == len(set(shown))
    assert set(shown) == {str(page.relative_to(DOCS)) for page in DOCS.glob("**/*.md")}


def test_python_blocks_compile() -> None:
    found = [
        (page, block.code)
        for page in PAGES
        for block in blocks(page.read_text(encoding="utf-8"))
        if block.language == "python"
    ]
    assert len(found) >= 30
    for page, code in found:
        ast.parse(code, filename=name_of(page))  # a SyntaxError names the page


# ------------------------------------------------------------- commands


def commands(text: str) -> Iterator[list[str]]:
    """The words of every command of ours that a page shows, in a block of its own or among others."""
    for block in blocks(text):
        if block.language not in ("console", ""):
            continue
        lines = block.commands if block.language == "console" else block.code.splitlines()
        for line in lines:
            given = re.fullmatch(r"(?:[A-Z_]+=\S* )*((?:cordee|make|python|torchrun|mpirun|srun) .*)", line)
            if given is not None:
                yield shlex.split(given[1].partition(" #")[0].removesuffix("&"))


def unknown(words: list[str]) -> list[str]:
    """What of a command does not exist: its name, its options, its file or its target."""
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
        return [word for word in words[1:] if "=" not in word and word not in targets]
    if words[0] == "python" and words[1].startswith(("benchmarks/", "docs/", "examples/", "tests/")):
        return [] if (ROOT / words[1]).is_file() else [words[1]]
    if "cordee" not in words:
        return []
    words = words[words.index("cordee") + 1 :]
    command: Any = typer.main.get_command(app)
    while words and not words[0].startswith("-") and hasattr(command, "commands"):
        if words[0] not in command.commands:
            return [words[0]]
        command, words = command.commands[words[0]], words[1:]
    known = {"--help", "-h"} | {name for one in command.params for name in one.opts}
    if command.name == "run":  # what it does not know is the script's
        return []
    return [word for word in words if word.startswith("-") and word.partition("=")[0] not in known]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_exist(page: Path) -> None:
    for words in commands(page.read_text(encoding="utf-8")):
        assert unknown(words) == [], shlex.join(words)


def test_an_unknown_command_is_seen() -> None:
    lines = "cordee trian x.py", "RANK=1 cordee train x.py --wokers 2", "make tea", "python benchmarks/no.py"
    page = "```console\n" + "".join(f"$ {line}\n" for line in lines) + "```\n"
    assert [unknown(words) for words in commands(page)] == [["trian"], ["--wokers"], ["tea"], ["benchmarks/no.py"]]
    assert unknown(["torchrun", "-m", "cordee", "train", "x.py", "--bach", "3"]) == ["--bach"]
    assert unknown(["cordee", "bench", "scaling", "x.py", "--workers", "1,2"]) == []


# ------------------------------------------------------------- the site


def test_the_reference_is_up_to_date() -> None:
    done = Started(DOCS / "generate.py", "--check", env=environment()).end()
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_site_is_built_and_asks_nothing_of_the_network(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="make docs installs it")
    pytest.importorskip("material", reason="make docs installs it")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").glob("**/*.html"))
    assert len(pages) > 30
    fetched = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(?:https?:)?//|<link\b[^>]*href=\"?(?:https?:)?//"
    )
    assert [page.name for page in pages if fetched.search(page.read_text(encoding="utf-8"))] == []
