"""The blocks of a page: what of it is code, what must run, and running it as it stands.

Python blocks run in order, each as a program of its own, all in one new folder; a block that begins with a
comment such as `# digits.py` is saved there under that name. Lines of console blocks that begin with `$ ` run if the
line above the block is `<!-- run -->`. A Python block that only shows a form has `<!-- not run: reason -->` above it,
and one that is only saved, to be used by commands, `<!-- save -->`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from alone import python

BLOCK = re.compile(r"^(?:<!-- (?P<note>[^\n]*) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S)
PROMPT = "$ "


@dataclass(frozen=True)
class Block:
    """A fenced block and the comment above it."""

    note: str
    language: str
    code: str

    @property
    def commands(self) -> list[str]:
        """What a reader types; a line that ends with a backslash goes on."""
        joined = self.code.replace("\\\n", "")
        return [line.removeprefix(PROMPT) for line in joined.splitlines() if line.startswith(PROMPT)]

    @property
    def shown(self) -> list[str]:
        """What the terminal answers, as far as the page shows it; `...` stands for lines that are left out."""
        return [line for line in self.code.splitlines() if not line.startswith(PROMPT) and line != "..."]


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a page, in order."""
    for found in BLOCK.finditer(text):
        yield Block(found["note"] or "", found["language"], found["code"])


def programs(text: str) -> list[tuple[str, str]]:
    """(language, code) of what must run, in order."""
    found = []
    for block in blocks(text):
        if block.language == "python" and block.note != "save" and not block.note.startswith("not run: "):
            found.append(("python", block.code))
        if block.language == "console" and block.note == "run":
            found.append(("console", "\n".join(block.commands)))
    return found


def environment() -> dict[str, str]:
    """Ours, with this interpreter's commands first on the path; with another PYTHONPATH no warm server would serve."""
    return {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}


def save(code: str, folder: Path) -> Path:
    """Write a Python block under the name that its first line gives it."""
    named = re.match(r"# ([\w.-]+\.py)\n", code)
    file = folder / (named[1] if named else "block.py")
    file.write_text(code, encoding="utf-8")
    return file


def run(language: str, code: str, folder: Path) -> str:
    """Run one block in `folder` and return what it says; that is shown when it fails."""
    if language == "python":
        return python(save(code, folder), cwd=folder)
    command = ["bash", "-euo", "pipefail", "-c", code]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, cwd=folder, env=environment(), timeout=240, check=False, **pipes)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{code}\n{done.stdout}"
    said: str = done.stdout
    return said


def missing(shown: list[str], said: str) -> list[str]:
    """The lines of `shown` that do not come in `said`, in this order; numbers may be others, a host has any name."""
    real = iter([_bare(line) for line in said.splitlines()])
    return [line for line in shown if _bare(line) not in real]


def _bare(line: str) -> str:
    line = re.sub(r"\b[0-9a-f]{64}\b", "HASH", line.rstrip())
    line = re.sub(r"\bon \S+ (?=was lost)", "on HOST ", line)
    return re.sub(r"\d[\d,]*(\.\d+)?(e[+-]?\d+)?", "N", line)
