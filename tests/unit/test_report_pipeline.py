"""The pipeline of a run, as its report shows it: the forecast of a step beside the step that was measured."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cordee.core.eventlog import parse_event
from cordee.core.events import PipelineEvent, encode
from cordee.split.schedules import table_of
from cordee.split.schedules.costs import Costs
from cordee.split.schedules.forecast import forecast
from cordee.split.schedules.simulate import Timeline, simulate
from cordee.watch.page import render
from cordee.watch.pipeline import MOST_BOXES, MOST_OPEN, in_words
from cordee.watch.summarise import summarise
from cordee.watch.summary import Pipeline, Summary
from records import HOSTILE, T0, end, event, start, step, write


def timeline(schedule: str = "1f1b", ranks: int = 2, micros: int = 3, chunks: int = 1) -> Timeline:
    table = table_of(schedule, ranks, micros, chunks)
    return simulate(table, Costs.equal(table.stages, 10.0, 10.0, 10.0))


def planned(at: float, given: Timeline, name: str = "1f1b") -> Any:
    return {**msgspec.to_builtins(forecast(name, given)), "time": T0 + at}


def measured(
    at: float,
    given: Timeline,
    rank: int,
    number: int = 5,
    *,
    began: float | None = None,
    late: float = 0.0,
    **more: Any,
) -> Any:
    """A rank's step as forecast, but `late` milliseconds later and on a clock that began at `began`."""
    spans = [(span.begin + late, span.end + late) for span in given.spans[rank]]
    origin = T0 + (at if began is None else began)
    fields = {"worker": 10 + rank, "replica": 0, "rank": rank, "step": number, "began": origin, "spans": spans, **more}
    return event("pipelinestep", at, **fields)


def run(folder: Path, *events: Any) -> Summary:
    steps = [step(2.0 + number / 10, number + 1) for number in range(8)]
    return summarise(write(folder, [*start(0.0, 2), *steps, *events, end(9.0)]))


def pipeline(folder: Path, *events: Any) -> Pipeline:
    found = run(folder, *events).pipeline
    assert found is not None
    return found


def test_forecast_and_measurement_on_one_clock(tmp_path: Path) -> None:
    given = timeline()
    # Rank 1 counts from a moment that is 50 ms later, so its own numbers are 50 ms smaller; it is 4 ms late.
    second = measured(3.0, given, 1, began=3.05, late=-46.0)
    found = pipeline(tmp_path, planned(1.9, given), measured(3.0, given, 0), second)
    assert (found.schedule, found.stages, found.micros) == ("1f1b", 2, 3)
    assert found.forecast_ms == given.step_ms == 120.0 and found.bubble == pytest.approx([0.25, 0.25])
    (one,) = found.measured
    assert (one.step, one.replica, one.workers) == (5, 0, (10, 11))
    assert [lane[0][0] for lane in one.lanes] == ["F0.0", "F1.0"]
    assert one.lanes[0][0][1:] == pytest.approx((0.0, 10.0), abs=1e-3)
    assert one.lanes[1][0][1:] == pytest.approx((14.0, 24.0), abs=1e-3)
    assert one.ms == pytest.approx(120.0, abs=1e-3) and one.bubble == pytest.approx([0.25, 0.25], abs=1e-3)
    assert in_words(found) == (
        "Schedule 1f1b: 2 ranks, 2 stages, 3 micro-batches per step. Forecast: 120 ms, of which ranks are idle 25%. "
        "Measured in step 5: 120 ms, idle 25%."
    )


def test_the_page_draws_a_box_for_each_action(tmp_path: Path) -> None:
    given = timeline("interleaved", 2, 4, 2)
    summary = run(tmp_path, planned(1.9, given), *(measured(3.0, given, rank) for rank in range(2)))
    page = render(summary, T0 + 10)
    assert "<h2>Pipeline</h2>" in page and "Measured: step 5" in page
    boxes = re.findall(
        r'<i class="([FBIW])( odd)?" style="left:([\d.]+)%;width:([\d.]+)%" title="([^"]*)"><b class="long1">(\d+)</b>',
        page,
    )
    assert len(boxes) == 2 * 2 * 4 * 4, "forecast and measurement, F and B, stages, micro-batches"
    assert sum(odd == " odd" for _, odd, *_ in boxes) == len(boxes) // 2
    whole = given.step_ms
    expected = [
        (100 * span.begin / whole, 100 * (span.end - span.begin) / whole, str(span.action))
        for row in given.spans
        for span in row
    ]
    for box, (left, width, name) in zip(boxes, expected, strict=False):
        assert float(box[2]) == pytest.approx(left, abs=1e-3) and float(box[3]) == pytest.approx(width, abs=1e-3)
        assert box[4].startswith(f"{name}, ") and box[5] == name.partition(".")[2]
    assert "gradient of weights" not in page.split("<h2>Pipeline</h2>")[1], "only kinds that occur are in the key"
    drawn = dataclasses.asdict(summary)["pipeline"]
    assert json.loads(json.dumps(drawn, allow_nan=False))["held"] == list(given.held)


def test_a_run_without_a_pipeline_shows_none(tmp_path: Path) -> None:
    summary = run(tmp_path)
    assert summary.pipeline is None and "<h2>Pipeline</h2>" not in render(summary, T0 + 10)


def test_a_step_counts_when_all_ranks_told_of_it(tmp_path: Path) -> None:
    given = timeline()
    half = [measured(3.0, given, 0, number) for number in range(1, 20)]
    found = pipeline(tmp_path / "half", planned(1.9, given), *half)
    assert found.measured == () and "Measured" not in in_words(found)
    assert "No step is on record from all ranks" in render(run(tmp_path / "page", planned(1.9, given), *half), T0 + 10)
    whole = [measured(3.1, given, 1, number) for number in (19, 19 - MOST_OPEN)]
    found = pipeline(tmp_path / "whole", planned(1.9, given), *half, *whole)
    assert [one.step for one in found.measured] == [19], "the last one; others that are still open are given up"


def test_replicas_have_steps_of_their_own(tmp_path: Path) -> None:
    given = timeline()
    told = [measured(3.0, given, rank, 5 + one, replica=one) for one in (1, 0) for rank in range(2)]
    summary = run(tmp_path, planned(1.9, given), *told)
    assert summary.pipeline is not None
    assert [(one.replica, one.step) for one in summary.pipeline.measured] == [(0, 5), (1, 6)]
    page = render(summary, T0 + 10)
    assert "Measured: step 5, replica 0" in page and "Measured: step 6, replica 1" in page


def test_another_table_or_start_begins_anew(tmp_path: Path) -> None:
    first, second = timeline(), timeline("gpipe", 2, 2)
    steps = [measured(3.0, first, rank) for rank in range(2)]
    found = pipeline(tmp_path / "table", planned(1.9, first), *steps, planned(3.5, second, "gpipe"), *steps)
    assert found.schedule == "gpipe" and found.measured == (), "what was on its way is of the former table"
    again = [planned(1.9, first), *steps, end(4.0), *start(5.0, 2, resume=True, steps=8)]
    assert run(tmp_path / "start", *again).pipeline is None


def test_many_actions_are_not_all_drawn(tmp_path: Path) -> None:
    given = timeline("gpipe", 8, 500)
    summary = run(tmp_path, planned(1.9, given))
    page = render(summary, T0 + 10)
    assert page.count('<i class="F"') + page.count('<i class="B"') - 2 == MOST_BOXES, "two are of the key"
    assert "2 ranks not drawn" in page and summary.pipeline is not None and len(summary.pipeline.forecast) == 8


def test_hostile_text_is_shown_as_text(tmp_path: Path) -> None:
    table = f'{HOSTILE.replace(" ", "")}.<b>"'
    event_ = PipelineEvent(
        schedule=HOSTILE, table=table, stage_ms=[], forecast=[[(-5.0, 0.0)]], forecast_ms=-1.0, bubble=[0.0], held=[0]
    )
    page = render(run(tmp_path, {**msgspec.to_builtins(event_), "time": T0 + 1.9}), T0 + 10)
    assert "alert(1)</script>" not in page and "&lt;script&gt;alert(1)" in page


@pytest.mark.parametrize("change", [{"forecast": [[]]}, {"bubble": []}, {"table": ""}, {"held": [1, 2, 3]}])
def test_a_forecast_of_another_table_is_no_event(change: dict[str, Any]) -> None:
    record = planned(0.0, timeline())
    assert isinstance(parse_event(encode(record)), PipelineEvent)
    with pytest.raises(ValueError, match="Expected a forecast"):
        parse_event(encode({**record, **change}))
