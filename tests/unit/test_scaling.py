"""Scaling figures from given step times: known answers, intervals that cover, and what is shown of them."""

from __future__ import annotations

import json
import math
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from cordee.cli.bench import doubling, parse_counts
from cordee.core.errors import JobError, PlanError, UsageError, WorkersLost
from cordee.core.events import EndEvent, FailureEvent, StartEvent, StepEvent, encode
from cordee.core.machine import usable_cores
from cordee.core.plan import Plan
from cordee.core.scaling import Figures, Timed, estimate, figures, is_oversubscribed, order_of_runs, t_975
from cordee.core.times import percentiles
from cordee.feed.data import digits
from cordee.group.wire import Address
from cordee.runtime.engines.forkserver import decode_request
from cordee.runtime.scaling import Measurement, step_times
from cordee.runtime.spec import Target, Trial, WorkerSpec
from cordee.train.job import Job, Save, Stop
from cordee.train.trial import trial_of
from cordee.watch.scaling import Setup, as_json, as_page, as_table
from cordee.watch.words import number


def run(workers: int, round: int, *milliseconds: float, batch: int = 100) -> Timed:
    return Timed(workers, round, tuple(each / 1e3 for each in milliseconds), (batch,) * len(milliseconds))


def setup(**other: Any) -> Setup:
    given: dict[str, Any] = {"job": "jobs/a.py", "plan": "sync=allreduce", "scaling": "strong", "rounds": 3, "steps": 3}
    given |= {"warm_up": 5, "device": "cpu", "threads_per_worker": 1, "cores": 2, "gpus": None}
    given |= {"host": "h", "versions": {"a": "1"}}
    return Setup(**{**given, "measured": "today", **other})


# ------------------------------------------------------------- figures


def test_known_answers() -> None:
    runs = [run(1, 1, 40, 40, 50), run(2, 1, 20, 20, 30), run(2, 2, 30, 30, 40), run(1, 2, 90, 90, 100)]
    assert all(figure.p50_ms.span is None for figure in figures(runs))  # two rounds say nothing of how rounds differ
    third = math.sqrt(6)  # of the two speed-ups 2 and 3 the geometric mean
    runs += [run(1, 3, 60, 60, math.sqrt(49 * 99)), run(2, 3, 60 / third, 60 / third, 60)]
    one, two = figures(runs)
    assert one.p50_ms.value == pytest.approx(60)  # the geometric mean of the runs' medians: 40, 90 and 60
    assert two.p50_ms.value == pytest.approx((20 * 30 * 60 / third) ** (1 / 3))
    assert one.p95_ms.value == pytest.approx((49 * 99 * runs[4].p95_ms) ** (1 / 3))
    assert one.throughput.value == pytest.approx((300 / 0.130 * 300 / 0.280 * runs[4].throughput) ** (1 / 3))
    assert two.speed_up is not None and two.efficiency is not None and one.speed_up is not None
    assert two.speed_up.value == pytest.approx(third)
    assert two.speed_up.value == pytest.approx(one.p50_ms.value / two.p50_ms.value)
    assert two.efficiency.value == pytest.approx(two.speed_up.value / 2)
    assert (one.speed_up.value, one.speed_up.span) == (1.0, None)
    # By hand: the logarithms of 2, 3 and their mean have the deviation log(1.5) / 2; t is 4.303 for two degrees.
    reach = math.exp(4.303 * (math.log(1.5) / 2) / math.sqrt(3))
    assert two.speed_up.span == pytest.approx((third / reach, third * reach))
    assert two.efficiency.span == pytest.approx((third / reach / 2, third * reach / 2))


def test_a_round_that_was_slow_for_everybody_takes_nothing_from_the_speed_up() -> None:
    runs = [run(count, place, 60 * slow / count) for place, slow in enumerate((1, 5, 2)) for count in (1, 3)]
    one, three = figures(runs)
    assert three.speed_up is not None and three.speed_up.span == pytest.approx((3, 3))
    assert one.p50_ms.span is not None and one.p50_ms.span[1] > 2 * one.p50_ms.span[0]


def test_the_smallest_count_is_what_others_are_compared_with() -> None:
    found = figures([run(8, 1, 10), run(2, 1, 30), run(4, 1, 20)])
    assert [one.workers for one in found] == [2, 4, 8]
    assert [round(one.speed_up.value, 6) for one in found if one.speed_up] == [1.0, 1.5, 3.0]
    assert [round(one.efficiency.value, 6) for one in found if one.efficiency] == [1.0, 0.75, 0.75]


def test_weak_scaling_compares_throughput() -> None:
    one, four = figures([run(1, 1, 10, 10, batch=100), run(4, 1, 15, 25, batch=400)], weak=True)
    assert (one.batch, four.batch) == (100, 400)
    assert four.speed_up is not None and four.efficiency is not None
    assert four.speed_up.value == pytest.approx(4 * 10 / 20)
    assert four.efficiency.value == pytest.approx(0.5)


def test_one_count_has_no_speed_up() -> None:
    (only,) = figures([run(3, 1, 10, 11), run(3, 2, 12, 13)])
    assert (only.speed_up, only.efficiency) == (None, None)
    assert only.p50_ms.value == pytest.approx(math.sqrt(10.5 * 12.5))


def coverage(rounds: int, *, between: float, trials: int) -> float:
    """In how many of many measurements the interval holds the true speed-up, which is 2 here."""
    draw = random.Random(7)
    inside = 0
    for _ in range(trials):
        runs: dict[int, list[Timed]] = {1: [], 2: []}
        for place in range(rounds):
            state = draw.gauss(0, 0.5)  # of the machine in this round: the same for both counts
            for count, seconds in ((1, 0.2), (2, 0.1)):
                own = draw.gauss(0, between)
                times = [seconds * math.exp(state + own + draw.gauss(0, 0.1)) for _ in range(21)]
                runs[count].append(Timed(count, place, tuple(times), (1,) * 21))
        span = estimate(lambda one: 1 / one.p50_ms, runs[2], runs[1]).span
        assert span is not None
        inside += span[0] <= 2 <= span[1]
    return inside / trials


@pytest.mark.parametrize("rounds", [3, 6])
def test_intervals_over_rounds_cover_though_runs_differ(rounds: int) -> None:
    assert 0.92 <= coverage(rounds, between=0.05, trials=500) <= 0.98


@pytest.mark.parametrize("rounds", [1, 2])
def test_fewer_than_three_rounds_give_no_interval(rounds: int) -> None:
    found = measured((1, 2), rounds=rounds)
    for one in found:
        assert one.speed_up is not None and one.efficiency is not None
        assert not any(figure.span for figure in (one.p50_ms, one.p95_ms, one.throughput, one.speed_up, one.efficiency))
    table, text = as_table(setup(rounds=rounds), found), as_page(setup(rounds=rounds), found)
    values = as_json(setup(rounds=rounds), found, [])
    for words in (table, text, values["intervals"]):
        assert "No 95 % intervals" in words and "--rounds 3" in words
    assert " to " not in table.splitlines()[-4] and "Whiskers" not in text and "<small>" not in text.split("<script")[0]
    assert values["counts"][1]["speed_up"] > 1 and values["counts"][1]["speed_up_95"] is None


def test_more_rounds_make_an_interval_narrower() -> None:
    runs = [run(1, place, 10 + place % 2) for place in range(20)]
    few, many = estimate(lambda one: one.p50_ms, runs[:4]), estimate(lambda one: one.p50_ms, runs)
    assert few.span is not None and many.span is not None
    assert many.span[1] - many.span[0] < few.span[1] - few.span[0]


@pytest.mark.parametrize(("freedom", "known"), [(1, 12.706), (15, 2.131), (16, 2.120), (30, 2.042), (120, 1.980)])
def test_students_t(freedom: int, known: float) -> None:
    assert t_975(freedom) == pytest.approx(known, abs=1e-3)


def test_nothing_above_zero_is_written_as_zero() -> None:
    assert [number(value) for value in (0.004, 0.03, 0.5, 12.34, 1234.5)] == ["0.004", "0.03", "0.50", "12.3", "1,234"]


def test_percentiles_lie_between_values() -> None:
    assert percentiles([4, 1, 3, 2], 50, 95) == pytest.approx([2.5, 3.85])
    assert percentiles([7], 95) == [7]


# ------------------------------------------------------------- what runs


def test_rounds_run_forwards_and_backwards() -> None:
    assert order_of_runs((1, 2, 4), 2) == [(1, 1), (1, 2), (1, 4), (2, 4), (2, 2), (2, 1)]


@pytest.mark.parametrize(
    ("workers", "threads", "cores", "gpus", "expected"),
    [(2, 1, 2, None, False), (3, 1, 2, None, True), (2, 2, 2, None, True), (2, 1, 8, 1, True), (2, 4, 8, 2, False)],
)
def test_oversubscription(workers: int, threads: int, cores: int, gpus: int | None, expected: bool) -> None:
    assert is_oversubscribed(workers, threads=threads, cores=cores, gpus=gpus) is expected


def test_every_run_gives_a_worker_the_same_threads(tmp_path: Path) -> None:
    cores = len(usable_cores())
    measured = Measurement(Target("job", "job.py"), (1, cores), Plan(), tmp_path, device="cpu", weak=True)
    launches = [measured.launch(1, count) for count in measured.counts]
    assert {launch.threads for launch in launches} == {1}
    assert [launch.target.trial for launch in launches] == [Trial(35, 1), Trial(35, cores)]
    assert measured.oversubscribed == []
    more = Measurement(Target("job", "job.py"), (cores + 1, 1), Plan(), tmp_path, device="cpu")
    assert more.oversubscribed == [cores + 1]


def test_a_trial_reaches_the_worker() -> None:
    hub = Address("127.0.0.1", 1, "token")
    for trial in (None, Trial(7, 3)):
        target = Target("job", "job.py", {"a": "1"}, ("b",), trial)
        spec = WorkerSpec(0, target, Plan(), "out", False, hub, "lo", 1, (0,), "folder", {}, 1.0, "cpu")
        assert decode_request(encode(spec)) == spec


def made_job(**fields: Any) -> Job:
    return Job(model=lambda: None, data=digits(), optimizer=lambda parameters: None, loss=lambda x, y: x, **fields)  # type: ignore[arg-type,return-value]


def test_a_trial_has_full_batches_and_neither_evaluates_nor_saves() -> None:
    job = made_job(batch=500, epochs=2, save=Save(steps=1), stop=Stop(steps=3, metric="loss"), batch_per="replica")
    trial = trial_of(job, 40, 3)
    order = trial.order(trial.resolve(5))
    assert {order.size(step) for step in range(40)} == {1500}
    assert (trial.data.validation, trial.data.test) == (None, None)
    assert (trial.stop, trial.save, trial.epochs) == (Stop(steps=40), Save(epochs=None), None)
    assert len(trial.data.train) == len(job.data.train)


def test_a_trial_keeps_a_schedule_only_if_it_was_made_for_so_many_steps() -> None:
    job = made_job(batch=500, epochs=5, schedule=lambda optimizer: None)  # 5 epochs of 3 steps
    assert trial_of(job, 15).schedule is job.schedule
    assert trial_of(job, 16).schedule is None


@pytest.mark.parametrize(
    ("text", "words"),
    [("1,x", "whole numbers"), ("", "whole numbers"), ("0,1", "at least 1"), ("2,-1", "at least 1"), ("2,4,2", "2 is")],
)
def test_wrong_counts_are_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_counts(text)


def test_counts() -> None:
    assert parse_counts("4, 1,2") == (4, 1, 2)
    assert [doubling(most) for most in (1, 2, 6, 8)] == [(1,), (1, 2), (1, 2, 4, 6), (1, 2, 4, 8)]


@pytest.mark.parametrize(("field", "value"), [("rounds", 0), ("steps", 1), ("warm_up", 0)])
def test_a_measurement_of_nothing_is_refused(field: str, value: Any, tmp_path: Path) -> None:
    measured = Measurement(
        **{"target": Target("job", "j"), "counts": (1,), "plan": Plan(), "out": tmp_path, field: value}
    )
    with pytest.raises(UsageError, match="at least"):
        measured.check()


def test_a_plan_that_does_not_fit_a_count_is_refused_with_that_count(tmp_path: Path) -> None:
    measured = Measurement(Target("job", "j"), (1, 2, 3), Plan.parse("proportions=1:2"), tmp_path)
    with pytest.raises(PlanError, match="--workers 1"):
        measured.check()


def test_a_measurement_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "scaling.json").write_text("{}")
    with pytest.raises(UsageError, match="--out"):
        Measurement(Target("job", "j"), (1,), Plan(), tmp_path).check()


def steps_at(*at: float) -> list[StepEvent]:
    return [StepEvent(place + 1, 0, 1.0, place, ms=1.0, at=when) for place, when in enumerate(at)]


def test_steps_are_timed_from_the_end_of_the_one_before() -> None:
    events = [StartEvent(1, "", False), *steps_at(10.0, 11.0, 11.5, 11.75, 12.0), EndEvent("completed", 0)]
    assert step_times(events, warm_up=1, steps=3) == ((1.0, 0.5, 0.25), (1, 2, 3))
    assert step_times(events, warm_up=3, steps=2) == ((0.25, 0.25), (3, 4))
    assert step_times(steps_at(10.0, 9.0, 10.0), warm_up=1, steps=2)[0] == (0.001, 1.0)  # a clock that was set back


def test_runs_that_say_nothing_are_refused() -> None:
    with pytest.raises(JobError, match="after 4 steps"):
        step_times(steps_at(1, 2, 3, 4), warm_up=2, steps=3)
    with pytest.raises(WorkersLost, match="worker 1"):
        step_times([*steps_at(1, 2, 3), FailureEvent(1, "", "killed", left=1)], warm_up=1, steps=2)


# ------------------------------------------------------------- what is shown


def measured(counts: tuple[int, ...], rounds: int = 3, over: tuple[int, ...] = ()) -> list[Figures]:
    draw = random.Random(3)
    runs = [
        run(count, place, *(80 / count**0.8 * draw.uniform(0.9, 1.2) for _ in range(9)))
        for place, count in order_of_runs(counts, rounds)
    ]
    return figures(runs, oversubscribed=over)


def unsteady() -> list[Figures]:
    """An interval over many powers of ten."""
    return figures(
        [run(count, place, ms) for place, slow in enumerate((1, 90, 900)) for count, ms in ((1, 10), (2, slow))]
    )


class Tags(HTMLParser):
    """Checks that every element is closed, and gathers attributes and words."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""
        self.data: dict[str, Any] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            self.data = self.data or (json.loads(data) if self.open[-1] == "script" else {})
        else:
            self.words += data


def parsed(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    tags.close()
    assert tags.open == []
    return tags


@pytest.mark.parametrize(
    "counts", [(1,), (1, 2, 4), (2, 3), tuple(2**power for power in range(9)), tuple(range(1, 60))]
)
def test_the_page_stands_alone_and_holds_the_figures(counts: tuple[int, ...]) -> None:
    found = measured(counts, over=(4, 8))
    text = as_page(setup(job="a/<b>&.py", cores=3), found)
    tags = parsed(text)
    assert "default-src &#39;none&#39;" in text and text.count("<script") == 3 and "<img" not in text
    assert not {name for name, _ in tags.attributes} & {"src", "srcset", "data"}
    assert [value for name, value in tags.attributes if name == "href"] == ["data:,"]
    assert not any("nan" in (value or "") or "inf" in (value or "") for _, value in tags.attributes)
    assert len(text.encode()) < 200_000
    assert "prefers-color-scheme: dark" in text and "Scaling of <b>&.py" in tags.words
    for one in found:
        assert number(one.p50_ms.value) in tags.words and number(one.throughput.value) in tags.words
        if one.speed_up is not None and one.efficiency is not None:
            assert f"{one.speed_up.value:.2f}" in tags.words and f"{one.efficiency.value * 100:.0f} %" in tags.words
            if one.efficiency.span is not None:
                low, high = one.efficiency.span
                assert f"{low * 100:.0f}–{high * 100:.0f} %" in tags.words
    assert ("Oversubscribed: 4" in tags.words) == (4 in counts)
    drawn = tags.data["scaling"]
    assert drawn["workers"] == [one.workers for one in found]
    assert drawn["figures"]["throughput"]["values"] == [one.throughput.value for one in found]
    assert ("speed_up" in drawn["figures"]) == (len(counts) > 1)
    assert text.count('data-plot="scaling"') == (1 if len(counts) == 1 else 2)


def test_the_table_and_the_json_say_the_same() -> None:
    found = measured((1, 2, 4), over=(4,))
    table, values = as_table(setup(), found), as_json(setup(), found, [])
    rows = [line.split() for line in table.splitlines() if re.match(r" *\d+[* ] ", line)]
    assert [row[0] for row in rows] == ["1", "2", "4*"]
    for row, count in zip(rows, values["counts"], strict=True):
        assert float(row[1]) == pytest.approx(count["step_ms"]["p50"], abs=0.05)
        assert float(row[4]) == pytest.approx(count["speed_up"], abs=0.005)
    assert values["oversubscribed"] == [4] and values["relative_to"] == 1
    assert [count["oversubscribed"] for count in values["counts"]] == [False, False, True]
    assert values["warning"] in table and "4 workers of 1 thread share 2 usable cores" in table
    assert json.loads(json.dumps(values, allow_nan=False)) == values


def test_without_oversubscription_nothing_is_said_of_it() -> None:
    found = measured((1, 2))
    assert as_json(setup(), found, [])["warning"] is None
    assert "*" not in as_table(setup(), found) and "share" not in parsed(as_page(setup(), found)).words


def test_gpus_are_oversubscribed_too() -> None:
    table = as_table(setup(device="cuda", gpus=1, cores=64), measured((1, 2, 4), over=(2, 4)))
    assert "2 and 4 workers of 1 thread share 1 GPU." in table


def test_wide_intervals_are_pointed_out() -> None:
    assert "busy" in as_table(setup(), unsteady()) and "busy" not in as_table(setup(), measured((1, 2)))
    assert "speed-up" not in as_table(setup(), measured((2,))).replace("there is no speed-up", "")
