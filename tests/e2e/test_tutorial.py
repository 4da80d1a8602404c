"""The tutorial runs line by line, and the terminal answers what it shows.

Besides what `shape/pages.py` knows: `<!-- start -->` leaves a command running, `<!-- shows -->` waits for its answers,
and `<!-- press Ctrl-C -->` stops it. A process number of the page stands for the one of this run at the same place.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cordee.core.errors import Interrupted
from harness import DEADLINE_S, Run
from records import start, step, write
from shape.house import ROOT
from shape.pages import Block, blocks, environment, missing, run, save

PROCESS = re.compile(r"worker (\d+) is (\d+)")


class Reader:
    """Somebody who does what the page says, in two terminals."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "terminal"
        self.running: subprocess.Popen[bytes] | None = None
        self.shown: list[str] = []
        self.numbers: dict[str, str] = {}

    def read(self, block: Block) -> None:
        acts: dict[str, Callable[[Block], None]] = {
            "save": lambda block: save(block.code, self.folder) and None,  # type: ignore[func-returns-value]
            "run": self._run,
            "start": self._start,
            "shows": self._wait,
            "press Ctrl-C": self._interrupt,
        }
        if block.note in acts:
            acts[block.note](block)

    def _run(self, block: Block) -> None:
        script = "\n".join(block.commands)
        for number, real in self.numbers.items():
            script = re.sub(rf"\b{number}\b", real, script)
        said = run("console", script, self.folder)
        assert missing(block.shown, said) == [], said

    def _start(self, block: Block) -> None:
        (command,) = block.commands
        with self.file.open("wb") as terminal:
            # `exec`: a Ctrl-C is for the command, not for the shell around it.
            words = ["bash", "-c", f"exec {command}"]
            self.running = subprocess.Popen(
                words, cwd=self.folder, env=environment(), stdout=terminal, stderr=subprocess.STDOUT
            )
        self._wait(block)
        real = dict(PROCESS.findall(self.file.read_text()))
        self.numbers = {number: real[worker] for worker, number in PROCESS.findall(block.code)}
        assert len(set(self.numbers.values())) == 3

    def _wait(self, block: Block) -> None:
        assert self.running is not None
        self.shown += block.shown
        deadline = time.monotonic() + DEADLINE_S
        while missing(self.shown, self.file.read_text()):
            assert time.monotonic() < deadline and self.running.poll() is None, self.file.read_text()
            time.sleep(0.05)

    def _interrupt(self, block: Block) -> None:
        assert self.running is not None
        self.running.send_signal(signal.SIGINT)
        assert self.running.wait(DEADLINE_S) == Interrupted.code
        assert missing([*self.shown, *block.shown], self.file.read_text()) == [], self.file.read_text()

    def close(self) -> None:
        if self.running is not None and self.running.poll() is None:
            self.running.kill()


@pytest.mark.timeout(300)
def test_the_tutorial_runs(warm: int, tmp_path: Path) -> None:
    page = list(blocks((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")))
    assert {"save", "run", "start", "shows", "press Ctrl-C"} <= {block.note for block in page}
    reader = Reader(tmp_path)
    try:
        for block in page:
            reader.read(block)
    finally:
        reader.close()
    killed, undisturbed = Run(tmp_path / "runs" / "killed"), Run(tmp_path / "runs" / "undisturbed")
    assert [event["worker"] for event in killed.of("failure")] == [1]
    assert [event["workers"] for event in killed.of("start")] == [3, 2]
    assert killed.losses == pytest.approx(undisturbed.losses, abs=1e-4)
    assert killed.result["order_sha256"] == undisturbed.result["order_sha256"]


def test_runs_are_compared_by_the_numbers_of_their_steps(tmp_path: Path) -> None:
    """One of them was stopped at once after step 10, and went on from a checkpoint of step 6."""
    done = [step(2.0 + number / 10, number, loss=1.0 / number) for number in range(1, 13)]
    write(tmp_path / "one", [*start(0.0, 1), *done])
    write(tmp_path / "other", [*start(0.0, 1), *done[:10], *start(10.0, 1, resume=True, steps=6), *done[6:]])
    page = blocks((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"))
    (code,) = (block.code for block in page if block.code.startswith("# compare.py"))
    save(code, tmp_path)
    said = run("console", "python compare.py one other", tmp_path)
    assert "12 steps, largest difference of a loss: 0.0e+00" in said


def test_the_page_on_folders_names_every_key(warm: int, tmp_path: Path) -> None:
    job = tmp_path / "digits.py"
    (source,) = (
        block.code for block in blocks((ROOT / "docs" / "tutorial.md").read_text()) if "# digits.py" in block.code
    )
    job.write_text(source)
    run("console", "cordee train digits.py --workers 2 --out run", tmp_path)
    page = (ROOT / "docs" / "reference" / "run-folder.md").read_text(encoding="utf-8")
    head, result_part = page.split("## result.json")
    run_part = head.split("## run.json")[1]
    for name, part in (("run.json", run_part), ("result.json", result_part)):
        keys = json.loads((tmp_path / "run" / name).read_text())
        rows = "\n".join(line.split("|")[1] for line in part.splitlines() if line.startswith("|"))
        assert set(re.findall(r"`(\w+)`", rows)) == set(keys), name
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert {name for name in files if name not in head} == set()
