"""How a run ended, where its record alone does not tell: one that was killed, and attempts to go on with it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cordee.watch.page import render
from cordee.watch.summarise import summarise
from cordee.watch.words import ending
from records import T0, end, event, start, step, write


def test_a_run_whose_process_is_gone(tmp_path: Path) -> None:
    """The hold on its folder tells what the record cannot; it says nothing new of a run that has ended."""
    write(tmp_path, [*start(0.0, 1), step(2.0, 1)])
    gone = summarise(tmp_path, T0 + 3.0, is_writing=False)
    assert gone.state == "killed"
    assert ending(gone, T0 + 3.0) == "It was killed after 2.0 s: its process is gone, and no end is on record."
    assert 'class="pill killed"' in render(gone, T0 + 3.0)
    assert [summarise(tmp_path, T0 + 3.0, held).state for held in (True, None)] == ["running", "running"]
    saved = write(tmp_path, [event("checkpoint", 2.5, step=1, ms=5.0, at=T0 + 2.4)])
    late = [summarise(saved, T0 + 3600.0, held) for held in (None, True, False)]
    assert [one.state for one in late] == ["unknown", "running", "killed"]  # a very long step
    assert ending(late[2], T0).endswith("--resume continues it.")
    write(tmp_path, [end(3.0)])
    assert summarise(tmp_path, T0 + 4.0, is_writing=False) == summarise(tmp_path, T0 + 4.0)


@pytest.mark.parametrize("ended", [True, False])
def test_an_attempt_to_resume_changes_nothing_but_the_list(ended: bool, tmp_path: Path) -> None:
    write(tmp_path, [*start(0.0, 1), step(2.0, 1), *([end(3.0)] if ended else [])])
    before = summarise(tmp_path, T0 + 4000.0)
    write(tmp_path, [event("attempt", 3600.0, code=10, message="--set foo: a job has no such field")])
    after = summarise(tmp_path, T0 + 4000.0)
    *others, one = after.incidents
    assert dataclasses.replace(after, incidents=tuple(others)) == before
    assert before.state == ("completed" if ended else "unknown")
    assert (one.kind, one.seconds, one.step) == ("attempt", 3.0 if ended else 2.0, 1)
    assert one.text == "resume failed: --set foo: a job has no such field (exit code 10)"
    write(tmp_path, [*start(5000.0, 1, resume=True, steps=1), step(5002.0, 2), end(5003.0)])
    on = summarise(tmp_path, T0 + 5003.0)
    assert (on.state, on.starts, on.running_s) == ("completed", 2, before.running_s + 3.0)
