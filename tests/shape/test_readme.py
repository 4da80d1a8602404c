"""The code in the README runs as it stands.

Python blocks run in order, each as a program of its own, all in one new folder; a block that begins with a
comment such as `# digits.py` is saved there under that name. Lines of console blocks that begin with `$ ` run if the
line above the block is `<!-- run -->`. A Python block that only shows a form has `<!-- not run: reason -->` above it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shape.house import ROOT, SOURCE

BLOCK = re.compile(r"^(?:<!-- (?P<note>[^\n]*) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S)


def programs(text: str) -> list[tuple[str, str]]:
    """(language, code) of what must run, in order."""
    found = []
    for block in BLOCK.finditer(text):
        note, language, code = block["note"] or "", block["language"], block["code"]
        if language == "python" and not note.startswith("not run: "):
            found.append(("python", code))
        if language == "console" and note == "run":
            lines = [line[2:] for line in code.splitlines() if line.startswith("$ ")]
            found.append(("console", "\n".join(lines)))
    return found


def run(language: str, code: str, folder: Path) -> None:
    """Run one block in `folder`; its output is shown when it fails."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(SOURCE)}
    if language == "python":
        named = re.match(r"# ([\w.-]+\.py)\n", code)
        file = folder / (named[1] if named else "block.py")
        file.write_text(code, encoding="utf-8")
        command = [sys.executable, str(file)]
    else:
        command = ["bash", "-euo", "pipefail", "-c", code]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"


@pytest.mark.timeout(600)
def test_the_readme_runs(tmp_path: Path) -> None:
    found = programs((ROOT / "README.md").read_text(encoding="utf-8"))
    assert {language for language, _ in found} == {"python", "console"}
    for language, code in found:
        run(language, code, tmp_path)


def test_what_runs_is_found_and_a_failure_is_seen(tmp_path: Path) -> None:
    text = """
```python
# one.py
value = 1
```
<!-- not run: only a form -->
```python
missing.name
```
```console
$ false
```
<!-- run -->
```console
$ test -f one.py
an answer
```
"""
    found = programs(text)
    assert found == [("python", "# one.py\nvalue = 1\n"), ("console", "test -f one.py")]
    for language, code in found:
        run(language, code, tmp_path)
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run("python", "1 / 0", tmp_path)
    with pytest.raises(AssertionError):
        run("console", "false\ntrue", tmp_path)
