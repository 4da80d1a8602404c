"""The examples of the page on sources of data run as they stand, on two workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import train
from shape.house import ROOT
from shape.pages import blocks, run, save


@pytest.mark.timeout(240)
def test_the_page_on_sources(warm: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # paths in a job begin where the command is given
    monkeypatch.setenv("CORDEE_CACHE", str(tmp_path / "cache"))
    trained = []
    for block in blocks((ROOT / "docs" / "how-to" / "data-sources.md").read_text(encoding="utf-8")):
        if block.language != "python" or block.note.startswith("not run: "):
            continue
        if "cordee.Job(" not in block.code:
            run("python", block.code, tmp_path)
            continue
        file = save(block.code, tmp_path)
        result = train(file, tmp_path / "runs" / file.stem, workers=2).result
        assert result["steps"] > 0 and result["samples_lost"] == result["samples_repeated"] == 0
        trained.append(file.stem)
    assert trained == ["images", "stream"]
