"""When what happened is said to have happened: losses that are written late, notes before a start."""

from __future__ import annotations

from pathlib import Path

import pytest

from cordee.watch.summarise import summarise
from records import T0, end, event, start, step, write


def test_a_loss_that_is_written_late_is_dated_by_when_it_was(tmp_path: Path) -> None:
    """Step 1 was under way, and is done; step 2 waits for the next group, and is done before the loss is written."""
    made = [
        *start(0.0, 2),
        event("failure", 2.6, worker=1, host="here", reason="killed", left=1, at=T0 + 2.08),
        event("regroup", 2.61, generation=2, workers=[0], ms=200.0, at=T0 + 2.28),
        step(2.1, 1),
        step(2.5, 2, ms=400.0),
        step(2.7, 3),
        end(3.0),
    ]
    summary = summarise(write(tmp_path / "now", made))
    failure, regroup, _ = summary.incidents
    assert (failure.step, failure.ms, failure.seconds) == (1, 400.0, pytest.approx(2.08))
    assert (regroup.step, regroup.seconds) == (1, pytest.approx(2.28))
    assert summary.workers[1].spans == ((1.0, 2.08),)
    for one in made:
        if one["event"] in ("failure", "regroup"):
            del one["at"]
    failure, regroup, _ = summarise(write(tmp_path / "former", made)).incidents
    assert (failure.step, regroup.step) == (2, 2)  # as far as the record of a former version tells


def test_a_loss_after_which_nothing_was_done(tmp_path: Path) -> None:
    late, lost = step(2.1, 1), event("failure", 2.2, worker=1, host="here", reason="killed", left=1)
    for name, after in (("end", []), ("regrouped", [event("regroup", 2.3, generation=2, workers=[0], ms=1.0)])):
        made = [*start(0.0, 2), lost, *after, late, end(3.0, code=1, reason="failed")]
        failure = summarise(write(tmp_path / name, made)).incidents[0]
        assert (failure.step, failure.ms) == (1, None)


@pytest.mark.parametrize("killed", [False, True])
def test_notes_before_a_start_belong_to_it(killed: bool, tmp_path: Path) -> None:
    """A coordinator waits for the other hosts before the run starts; a resumed one does so a day after it."""
    write(tmp_path, [event("warning", -5.0, message="waiting")])
    assert [one.seconds for one in summarise(tmp_path).incidents] == [0.0]
    day = 86_400.0
    made = [*start(0.0, 2), event("warning", 2.0, message="among steps"), step(2.5, 1)]
    made += [] if killed else [end(2.5, code=130, reason="interrupted")]
    made += [event("warning", day - 60.0, message="waiting again"), *start(day, 2, resume=True, steps=1)]
    summary = summarise(write(tmp_path, [*made, step(day + 2.0, 2), end(day + 3.0)]))
    assert summary.running_s == pytest.approx(5.5)
    told = [(one.text, one.seconds) for one in summary.incidents if one.kind == "warning"]
    assert told == [("waiting", 0.0), ("among steps", 2.0), ("waiting again", 2.5)]
    (resumed,) = (one for one in summary.incidents if one.kind == "resume")
    assert "23 h 59 min after the last record" in resumed.text
