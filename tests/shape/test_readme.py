"""The code in the README runs as it stands; `pages.py` says what of a page runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from shape.house import ROOT
from shape.pages import blocks, missing, programs, run


@pytest.mark.timeout(900)
def test_the_readme_runs(warm: int, tmp_path: Path) -> None:
    found = programs((ROOT / "README.md").read_text(encoding="utf-8"))
    assert {language for language, _ in found} == {"python", "console"}
    for language, code in found:
        run(language, code, tmp_path)


PAGE = """
```python
# one.py
value = 1
```
<!-- not run: only a form -->
```python
missing.name
```
<!-- save -->
```python
# two.py
import absent
```
```console
$ false
```
<!-- run -->
```console
$ test -f one.py
an answer
...
$ true && \\
  true
```
"""


def test_what_runs_is_found_and_a_failure_is_seen(tmp_path: Path) -> None:
    found = programs(PAGE)
    assert found == [("python", "# one.py\nvalue = 1\n"), ("console", "test -f one.py\ntrue &&   true")]
    for language, code in found:
        run(language, code, tmp_path)
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run("python", "1 / 0", tmp_path)
    with pytest.raises(AssertionError):
        run("console", "false\ntrue", tmp_path)


def test_answers_are_compared_but_for_their_numbers() -> None:
    *_, block = blocks(PAGE)
    assert block.shown == ["an answer", "  true"]
    said = "step 1,024: loss 2.5e-07\nworker 3 on here.example was lost\nthe end"
    assert missing(["step 3: loss 0.5", "worker 1 on alpha was lost"], said) == []
    assert missing(["the end", "step 3: loss 0.5"], said) == ["step 3: loss 0.5"]
    assert missing(["step 3: los 0.5"], said) == ["step 3: los 0.5"]
