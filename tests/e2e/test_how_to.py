"""The examples of the how-to pages run as they stand, on two workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from alone import python
from harness import Run, run_script, train
from shape.house import ROOT
from shape.pages import blocks, run, save

PAGES = ROOT / "docs" / "how-to"


def examples(page: str) -> Iterator[str]:
    """The Python blocks that are whole files."""
    for block in blocks((PAGES / page).read_text(encoding="utf-8")):
        if block.language == "python" and block.code.startswith("# ") and not block.note.startswith("not run: "):
            yield block.code


@pytest.mark.timeout(240)
def test_the_jobs_train(warm: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # paths in a job begin where the command is given
    names = []
    for code in examples("jobs.md"):
        if "cordee.Job(" not in code:
            run("python", code, tmp_path)
            continue
        file = save(code, tmp_path)
        names.append(file.stem)
        result = train(file, tmp_path / "runs" / file.stem, workers=2).result
        assert result["steps"] > 0 and result["samples_lost"] == result["samples_repeated"] == 0
    assert len(names) == len(set(names)) >= 10
    assert Run(tmp_path / "runs" / "until_good").result["epochs"] < 50  # a condition ended it
    losses = [Run(tmp_path / "runs" / name).losses[0] for name in ("until_good", "tuned")]
    assert losses[1] < 0.5 < losses[0]  # the second began where the first had ended


@pytest.mark.timeout(240)
def test_the_loops_run(warm: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = []
    for code in examples("own-loop.md"):
        file = save(code, tmp_path)
        names.append(file.stem)
        ended = run_script(file, tmp_path / "runs" / file.stem, workers=2)
        assert ended.of("step") and not ended.of("warning"), file.stem
    assert len(names) >= 3
    again = run_script(tmp_path / "saved.py", tmp_path / "runs" / "again", workers=2)
    assert not again.of("step"), "it had finished"


def test_words_are_counted(tmp_path: Path) -> None:
    (code,) = examples("move-data.md")
    said = python(save(code, tmp_path), cwd=tmp_path)
    assert "2 ['climbs', 'holds', 'rope', 'team', 'the']" in said and "5 keys" in said


@pytest.mark.timeout(240)
def test_the_page_on_data(warm: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CORDEE_CACHE", str(tmp_path / "cache"))
    trained = 0
    for code in examples("data.md"):
        if "cordee.Job(" not in code:
            run("python", code, tmp_path)
            continue
        file = save(code, tmp_path)
        result = train(file, tmp_path / "runs" / file.stem, workers=2, traced=True).result
        assert result["steps"] > 0 and result["samples_lost"] == result["samples_repeated"] == 0
        trained += 1
    assert trained == 2
    # The block that needs a run, with the run that was trained above.
    text = (PAGES / "data.md").read_text(encoding="utf-8")
    (last,) = [block.code for block in blocks(text) if block.note.startswith("not run: ")]
    assert run("python", f"import cordee\n{last}", tmp_path).strip() in ("lives alone", "shares a flat", "owns a house")
